//! Picks one row of a file that has several.

use crate::Rows;
use crate::error::Problem;
use crate::gap::{About, Cause, Gap};
use crate::shown::Shown;

/// Which row was picked, and whether others would have done as well.
#[derive(Debug)]
pub(crate) struct Picked {
    pub(crate) rows: Rows,
    pub(crate) gap: Option<Gap>,
}

/// The row that `asked` names, the first one where it names none. `ID#2` is the third row with the id `ID`.
pub(crate) fn pick(ids: &[&str], asked: Option<&str>) -> Result<Picked, Problem> {
    let Some(first) = ids.first() else {
        return Err(Problem::UnknownFormat { found: "a list without rows".into() });
    };
    let with_id = |id: &str| -> Vec<usize> { (0..ids.len()).filter(|&row| ids[row] == id).collect() };
    let unknown = |asked: &str| Problem::UnknownInstance {
        asked: asked.to_owned(),
        ids: ids.iter().map(|&id| id.to_owned()).collect(),
    };
    let (rows, nth) = match asked {
        None => (with_id(first), 0),
        Some(id) => match with_id(id) {
            rows if !rows.is_empty() => (rows, 0),
            _ => {
                let (id, nth) = numbered(id).ok_or_else(|| unknown(id))?;
                (with_id(id), nth)
            }
        },
    };
    let picked = *rows.get(nth).ok_or_else(|| unknown(asked.unwrap_or_default()))?;
    let gap = (rows.len() > 1).then(|| {
        let (id, count) = (ids[picked], rows.len());
        let id = Shown(id);
        Gap::new(About::Selection, Cause::Chosen, format!("{count} rows are of `{id}`; this is `{id}#{nth}`"))
    });
    Ok(Picked { rows: Rows { count: ids.len(), picked }, gap })
}

/// `ID#2` apart.
pub(crate) fn numbered(asked: &str) -> Option<(&str, usize)> {
    let (id, number) = asked.rsplit_once('#')?;
    Some((id, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_by_its_id_or_named_as_missing() {
        let ids = ["a", "b", "a", "c#1"];
        #[rustfmt::skip]
        let cases = [ // asked, row, others would do
            (None,         Ok(0),  true),
            (Some("a"),    Ok(0),  true),
            (Some("a#0"),  Ok(0),  true),
            (Some("a#1"),  Ok(2),  true),
            (Some("b"),    Ok(1),  false),
            (Some("c#1"),  Ok(3),  false),
            (Some("a#2"),  Err("no row for the instance `a#2`; the file has a, b, a, c#1"), false),
            (Some("d"),    Err("no row for the instance `d`; the file has a, b, a, c#1"),   false),
            (Some("d#0"),  Err("no row for the instance `d#0`; the file has a, b, a, c#1"), false),
        ];
        for (asked, expected, others) in cases {
            match pick(&ids, asked) {
                Ok(picked) => {
                    assert_eq!(Ok(picked.rows.picked), expected, "{asked:?}");
                    assert_eq!(picked.rows.count, 4);
                    assert_eq!(picked.gap.is_some(), others, "{asked:?}");
                }
                Err(problem) => assert_eq!(Some(problem.to_string().as_str()), expected.err()),
            }
        }
        assert!(pick(&[], None).is_err());
    }
}
