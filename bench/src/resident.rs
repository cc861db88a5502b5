//! What a process holds in memory, by what it is: `smaps` of `proc_pid_smaps(5)`.

use std::path::Path;

/// Resident megabytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Resident {
    /// Of mapped pack files.
    pub pack: f64,
    /// Of other mapped files: the bundle's originals, the program, its libraries.
    pub files: f64,
    /// Of no file: heap and stacks.
    pub anonymous: f64,
}

impl Resident {
    /// Of this process.
    #[must_use]
    pub fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default())
    }

    fn parse(smaps: &str) -> Self {
        let mut sums = Self::default();
        let mut path = "";
        for line in smaps.lines() {
            let mut words = line.split_ascii_whitespace();
            let first = words.next().unwrap_or_default();
            if first.contains('-') {
                path = words.nth(4).unwrap_or_default();
            } else if first == "Rss:" {
                let megabytes = words.next().and_then(|it| it.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0;
                let sum = match path {
                    _ if Path::new(path).extension().is_some_and(|it| it == "pack") => &mut sums.pack,
                    _ if path.starts_with('/') => &mut sums.files,
                    _ => &mut sums.anonymous,
                };
                *sum += megabytes;
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_told_apart() {
        let smaps = "7f00-7f10 r--s 00000000 fd:00 5 /a/y.pack\nRss: 2048 kB\nPss: 9 kB\n\
                     7f10-7f20 r--p 00000000 fd:00 5 /a/x.pack\nRss: 1024 kB\n\
                     7f20-7f30 r--p 00000000 fd:00 6 /a/model.safetensors\nRss: 512 kB\n\
                     7f30-7f40 rw-p 00000000 00:00 0 [heap]\nRss: 256 kB\n\
                     7f40-7f50 rw-p 00000000 00:00 0 \nRss: 256 kB\n";
        let found = Resident::parse(smaps);
        assert_eq!(found, Resident { pack: 3.0, files: 0.5, anonymous: 0.5 });
        assert!(Resident::now().anonymous > 0.0);
    }
}
