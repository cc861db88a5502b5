//! The pack file: a second start is the first one without its work, and no damage makes a result another one.
#![cfg(all(unix, target_endian = "little"))]
#![expect(clippy::unwrap_used, reason = "a test asserts by panicking, in its helpers too")]

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use tack_kernels::engine::{PACKS_KEPT, PackFile, PackPlace, PackSource};
use tack_kernels::{Adapter, BundleSource, Engine, EngineOptions, Network, Stop};
use tempfile::TempDir;

const FILES: [&str; 5] =
    ["config.json", "model.safetensors", "adapter_config.json", "adapter_model.safetensors", "heads.safetensors"];

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(case)
}

/// A bundle of its own for each test.
fn bundle(case: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in FILES {
        fs::copy(golden(case).join(file), directory.path().join(file)).unwrap();
    }
    directory
}

fn load(directory: &Path, adapter: Adapter) -> Engine {
    let threads = NonZeroUsize::new(2).unwrap();
    let options = EngineOptions { adapter, threads, pack_file: PackFile::Always, ..EngineOptions::default() };
    Engine::load(&BundleSource::directory(directory), &options).unwrap()
}

fn hidden(engine: &mut Engine) -> Vec<u32> {
    let vocab_size = engine.config().vocab_size;
    let tokens: Vec<u32> = (0..70).map(|i| u32::try_from((7919 * i + 13) % vocab_size).unwrap()).collect();
    engine.hidden(&tokens, Stop::never()).unwrap().into_iter().map(f32::to_bits).collect()
}

fn pack_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|it| it == "pack")).collect()
}

#[test]
fn the_second_start_maps_what_the_first_one_wrote() {
    let directory = bundle("plain");
    let mut first = load(directory.path(), Adapter::Folded);
    assert!(matches!(first.pack_source(), PackSource::Written { .. }), "{:?}", first.pack_source());
    let expected = hidden(&mut first);
    let mut second = load(directory.path(), Adapter::Folded);
    assert!(matches!(second.pack_source(), PackSource::File { .. }), "{:?}", second.pack_source());
    assert_eq!((hidden(&mut second), second.digest()), (expected, first.digest()));
    assert_eq!((second.repacked_layers(), second.precisions()), (0, first.precisions()));
    // No other file was left, and the base without its adapter is another bundle with a file of its own.
    assert_eq!(pack_files(directory.path()).len(), 1);
    assert!(matches!(load(directory.path(), Adapter::None).pack_source(), PackSource::Written { .. }));
    assert_eq!(pack_files(directory.path()).len(), 2);
    // An adapter beside the weights hangs on the file of the base.
    let apart = load(directory.path(), Adapter::Apart);
    assert!(matches!(apart.pack_source(), PackSource::File { .. }), "{:?}", apart.pack_source());
    assert_eq!((apart.digest(), pack_files(directory.path()).len()), (first.digest(), 2));
}

#[test]
fn a_changed_weight_is_packed_anew() {
    let directory = bundle("plain");
    let before = hidden(&mut load(directory.path(), Adapter::Folded));
    let path = directory.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 0x80; // the sign of a weight, or of a gain
    fs::write(&path, bytes).unwrap();
    let mut changed = load(directory.path(), Adapter::Folded);
    assert!(matches!(changed.pack_source(), PackSource::Written { .. }), "{:?}", changed.pack_source());
    assert_ne!(hidden(&mut changed), before);
}

#[test]
fn a_directory_that_takes_no_file_still_serves() {
    let directory = bundle("plain");
    let expected = hidden(&mut load(directory.path(), Adapter::Folded));
    let [pack] = &pack_files(directory.path())[..] else { unreachable!("one pack file") };
    // A directory in its place cannot be replaced by a file, by root neither.
    fs::remove_file(pack).unwrap();
    fs::create_dir_all(pack.join("in the way")).unwrap();
    let mut engine = load(directory.path(), Adapter::Folded);
    assert!(matches!(engine.pack_source(), PackSource::NotWritten(_)), "{:?}", engine.pack_source());
    assert_eq!(hidden(&mut engine), expected);
}

/// Beside the bundle first; where nothing can be written, elsewhere, memo of the digests included.
#[test]
fn the_first_place_that_takes_a_file_gets_it() {
    let directory = bundle("plain");
    let other = directory.path().join("cache/of/tack");
    let place = |place| EngineOptions { pack_file: PackFile::Always, pack_place: place, ..EngineOptions::default() };
    let source = BundleSource::directory(directory.path());
    let load = |options: &EngineOptions| Engine::<tack_kernels::ActionHeads>::load(&source, options).unwrap();
    let nowhere = PathBuf::from("/dev/null/none");
    #[rustfmt::skip]
    let cases = [ // place                                                     written to
        (PackPlace::Beside { otherwise: Some(other.clone()) },                 Some(directory.path())),
        (PackPlace::In(other.clone()),                                         Some(&*other)),
        (PackPlace::In(nowhere),                                               None),
    ];
    for (kept, expected) in cases {
        let engine = load(&place(kept.clone()));
        match (engine.pack_source(), expected) {
            (PackSource::Written { path, bytes, .. }, Some(expected)) => {
                assert_eq!(path.parent(), Some(expected), "{kept:?}");
                assert_eq!(*bytes, fs::metadata(path).unwrap().len());
                assert!(matches!(load(&place(kept)).pack_source(), PackSource::File { path: found } if found == path));
            }
            (PackSource::NotWritten(_), None) => {}
            (other, _) => unreachable!("{kept:?}: {other:?}"),
        }
    }
    // With the bundle's own file gone and a directory in its way, the other place is used.
    let [pack] = &pack_files(directory.path())[..] else { unreachable!("one pack file") };
    fs::remove_file(pack).unwrap();
    fs::create_dir_all(pack.join("in the way")).unwrap();
    let engine = load(&place(PackPlace::Beside { otherwise: Some(other.clone()) }));
    assert!(matches!(engine.pack_source(), PackSource::File { path } if path.starts_with(&other)));
}

/// Four processes' worth of engines that start at once from nothing: each gets its weights, and one sound file is left.
#[test]
fn starts_at_once_do_not_disturb_each_other() {
    let directory = bundle("plain");
    let hidden: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> =
            (0..4).map(|_| scope.spawn(|| hidden(&mut load(directory.path(), Adapter::Folded)))).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    assert!(hidden.windows(2).all(|pair| pair[0] == pair[1]));
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left.len(), FILES.len() + 2, "the bundle, its pack file and the memo: {left:?}");
    let mut again = load(directory.path(), Adapter::Folded);
    assert!(matches!(again.pack_source(), PackSource::File { .. }));
    assert_eq!((self::hidden(&mut again), again.repacked_layers()), (hidden[0].clone(), 0));
}

#[test]
fn a_directory_keeps_the_newest_few_and_no_leavings() {
    let directory = bundle("plain");
    let old = std::time::SystemTime::now() - std::time::Duration::from_hours(25);
    let names =
        ["tack-engine.0.measured.pack", "tack-engine.1.5.0.partial", "another.pack", "tack-engine.2.6.0.partial"];
    for (name, age) in names.into_iter().zip([Some(old), Some(old), Some(old), None]) {
        let file = fs::File::create(directory.path().join(name)).unwrap();
        age.map_or(Ok(()), |age| file.set_modified(age)).unwrap();
    }
    for index in 0..PACKS_KEPT {
        let path = directory.path().join("heads.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] = u8::try_from(index).unwrap();
        fs::write(&path, bytes).unwrap();
        let engine = load(directory.path(), Adapter::Folded);
        assert!(matches!(engine.pack_source(), PackSource::Written { .. }));
    }
    let is_there = names.map(|name| directory.path().join(name).exists());
    assert_eq!(is_there, [false, false, true, true], "the oldest and what was abandoned are gone, and nothing else");
    assert_eq!(pack_files(directory.path()).len(), PACKS_KEPT + 1, "one of which is another's");
}

/// Every byte that is flipped, and every length that it is cut to: refused at once or repaired when touched, and the
/// result is the same.
#[test]
fn damage_is_found_and_the_result_stays() {
    for case in ["plain", "bf16"] {
        let directory = bundle(case);
        let mut first = load(directory.path(), Adapter::Folded);
        let expected = hidden(&mut first);
        let [path] = &pack_files(directory.path())[..] else { unreachable!("one pack file") };
        let sound = fs::read(path).unwrap();
        let mut outcomes = [0; 2];
        let steps = 60;
        for step in 0..2 * steps {
            let mut bytes = sound.clone();
            if step < steps {
                // Spread over the file, and the trailer bit by bit in place.
                let place = if step < 20 { bytes.len() - 1 - 3 * step } else { step * 7919 * 31 % bytes.len() };
                bytes[place] ^= 1 << (step % 8);
            } else {
                bytes.truncate(match step - steps {
                    cut @ 0..20 => sound.len() - 1 - cut * 5,
                    cut => (cut - 20) * sound.len() / steps,
                });
            }
            // Another inode than the one that an engine may have mapped.
            fs::remove_file(path).ok();
            fs::write(path, &bytes).unwrap();
            let mut engine = load(directory.path(), Adapter::Folded);
            assert_eq!(hidden(&mut engine), expected, "{case}, step {step}");
            match engine.pack_source() {
                // Padding between layers is part of no layer, and changes nothing.
                PackSource::File { .. } => outcomes[0] += usize::from(engine.repacked_layers() > 0),
                PackSource::Written { .. } => outcomes[1] += 1,
                other => unreachable!("{other:?}"),
            }
        }
        println!("{case}: {} repaired, {} refused, of {}", outcomes[0], outcomes[1], 2 * steps);
        assert!(outcomes[0] > 10 && outcomes[1] > steps, "{outcomes:?}");
    }
}

#[test]
fn an_adapter_is_swapped_as_if_it_had_been_there() {
    let [one, other] = ["plain", "plain"].map(bundle);
    // The same base, another adapter: the first one with its sign turned.
    let path = other.path().join("adapter_model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    bytes[header..].as_chunks_mut::<4>().0.iter_mut().step_by(2).for_each(|word| word[3] ^= 0x80);
    fs::write(&path, bytes).unwrap();

    for adapter in [Adapter::Folded, Adapter::Apart] {
        let [mut of_one, mut of_other] = [&one, &other].map(|it| load(it.path(), adapter));
        let expected = [hidden(&mut of_one), hidden(&mut of_other)];
        assert_ne!(expected[0], expected[1]);
        // From packed weights, and from a file that no pass has touched yet.
        let untouched = load(one.path(), adapter);
        for mut engine in [of_one, untouched] {
            let digest = engine.digest();
            for _ in 0..2 {
                engine.swap_adapter(&BundleSource::directory(other.path())).unwrap();
                assert_eq!((hidden(&mut engine), engine.digest()), (expected[1].clone(), of_other.digest()));
                engine.swap_adapter(&BundleSource::directory(one.path())).unwrap();
                assert_eq!((hidden(&mut engine), engine.digest()), (expected[0].clone(), digest));
            }
            // One that is refused changes nothing.
            assert!(engine.swap_adapter(&BundleSource::directory(golden("wide_heads"))).is_err());
            assert_eq!((hidden(&mut engine), engine.digest()), (expected[0].clone(), digest));
        }
    }
}
