//! Times as agents write them: ISO 8601, with or without a zone.

/// Microseconds since 1970 of `2025-04-30T16:32:57.821635`, with `Z`, `+02:00` or no zone at the end.
///
/// Without a zone the recorder's own clock is meant: differences within one file are right, and only they are used.
/// `None` for any other text.
pub(crate) fn micros(text: &str) -> Option<u64> {
    let (date, clock) = text.split_once(['T', ' '])?;
    let mut date = date.splitn(3, '-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (clock, offset_minutes) = zone(clock)?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut clock = clock.splitn(3, ':').map(number);
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if hour > 23 || minute > 59 || second > 60 || fraction.len() > 9 || !fraction.bytes().all(|it| it.is_ascii_digit())
    {
        return None;
    }
    let fraction_us = format!("{fraction:0<6}").get(..6)?.parse::<i64>().ok()?;
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + (minute - offset_minutes) * 60 + second;
    u64::try_from(seconds * 1_000_000 + fraction_us).ok()
}

fn number(text: &str) -> Option<i64> {
    (text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

fn zone(clock: &str) -> Option<(&str, i64)> {
    if let Some(clock) = clock.strip_suffix('Z') {
        return Some((clock, 0));
    }
    let Some(at) = clock.find(['+', '-']) else {
        return Some((clock, 0));
    };
    let (hours, minutes) = clock[at + 1..].split_once(':')?;
    let minutes = number(hours)? * 60 + number(minutes)?;
    Some((&clock[..at], if clock[at..].starts_with('-') { -minutes } else { minutes }))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar: whole years, then the days of the year's months.
fn days(year: i64, month: i64, day: i64) -> i64 {
    const BEFORE_MONTH: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leap_days_before = |year: i64| (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let in_year = BEFORE_MONTH[usize::try_from(month - 1).unwrap_or(0)] + i64::from(is_leap && month > 2) + day - 1;
    (year - 1970) * 365 + leap_days_before(year) - leap_days_before(1970) + in_year
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_agents_write_them() {
        #[rustfmt::skip]
        let cases = [
            ("1970-01-01T00:00:00",              Some(0)),
            ("2025-04-30T16:32:57.821635",       Some(1_746_030_777_821_635)),
            ("2026-06-16T12:35:22.993Z",         Some(1_781_613_322_993_000)),
            ("2026-06-16T14:35:22.993+02:00",    Some(1_781_613_322_993_000)),
            ("2026-06-16T07:05:22.993-05:30",    Some(1_781_613_322_993_000)),
            ("2024-02-29 23:59:59.123456789Z",   Some(1_709_251_199_123_456)),
            ("2000-03-01T00:00:00Z",             Some(951_868_800_000_000)),
            ("2026-13-01T00:00:00",              None),
            ("2026-06-16",                       None),
            ("2026-06-16T12:35",                 None),
            ("2026-06-16T12:35:é2",              None),
            ("-1-01-01T00:00:00",                None),
            ("yesterday",                        None),
            ("",                                 None),
        ];
        for (text, expected) in cases {
            assert_eq!(micros(text), expected, "{text}");
        }
    }
}
