//! Frames: pinned bytes, bounds, and that no bytes do harm.
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking, as tests do

use proptest::prelude::*;
use tack_sandbox_protocol::egress::{Connections, Host, MAX_EGRESS_LINES, Verdict};
use tack_sandbox_protocol::frame::{self, HEADER_BYTES, MAX_BODY_BYTES, MAX_FRAME_BYTES, VERSION};
use tack_sandbox_protocol::request::MAX_MOUNTS;
use tack_sandbox_protocol::{
    Access, Cause, Egress, EgressLog, EgressRecord, End, Figure, FrameError, Key, Layer, LayerState, Layers, Limit,
    Mount, Mounts, Need, Part, Reason, Receipt, Refusal, Reply, Request, RunLimits, RunRequest, SetUpFailure,
    SignedReceipt, SourceProblem, Stage, Statement, Stream, StreamSummary, Strings, Submission, Times, Token, Usage,
};

fn request<'a>(argv: &'a [u8], mounts: &[Mount<'a>]) -> Request<'a> {
    let mut list = Mounts::new();
    for mount in mounts {
        list.push(*mount).unwrap();
    }
    Request::Run(RunRequest {
        argv: Strings::new(argv).unwrap(),
        environment: Strings::new(b"PATH=/bin\0").unwrap(),
        directory: b"/task",
        mounts: list,
        limits: RunLimits::default(),
        report: true,
        live: false,
        egress: Egress::Mirror,
    })
}

fn receipt() -> Receipt {
    let mut layers = Layers::all(LayerState::Active);
    layers.set(Layer::SwapLimit, LayerState::Inactive(Reason::GroupRefused { errno: 13 }));
    Receipt {
        cause: Cause::OutputLimit(Stream::Stderr),
        end: Some(End::Signalled { signal: 9 }),
        usage: Usage {
            wall_us: 1,
            cpu_us: Figure::Measured(2),
            user_us: Figure::Sampled(3),
            system_us: Figure::Sampled(4),
            memory_peak_bytes: Figure::Sampled(5),
            max_rss_bytes: Figure::Unavailable(Reason::Killed),
            processes_peak: Figure::Measured(6),
            forks_refused: Figure::Measured(7),
            oom_kills: Figure::Unavailable(Reason::NoController),
        },
        streams: [StreamSummary { bytes_total: 300, sha256: [0xaa; 32] }; 3],
        times: Times { stage_us: [1; Stage::COUNT], set_up_us: 24, tear_down_us: 128 },
        layers,
        landlock_abi: 7,
        policy_digest: [0xbb; 32],
        egress: egress(),
    }
}

fn egress() -> EgressRecord {
    let mut log = EgressLog::new();
    let host = Host::new("a.b").unwrap();
    let (verdict, count) = (Verdict::NotListed, 2);
    log.add(&Connections { host, port: 443, verdict, count, bytes_out: 3, bytes_in: 4, duration_us: 5 });
    EgressRecord::Mirror(log)
}

fn encode<T: serde::Serialize>(message: &T) -> Vec<u8> {
    let mut buffer = vec![0; MAX_FRAME_BYTES];
    frame::encode(message, &mut buffer).unwrap().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn the_bytes_of_a_frame_are_pinned() {
    let mount = Mount { target: b"/task", access: Access::ReadWrite };
    let run = encode(&request(b"ls\0-l\0", &[mount]));
    // Header: "tk", version 2, 70 bytes. Body: Run; argv; environment; directory; one mount; ten limits; report; live,
    // egress.
    let expected = [
        "746b020046000000",
        "00",
        "066c73002d6c00",
        "0a504154483d2f62696e00",
        "052f7461736b",
        "01052f7461736b01",
        "808ece1c809c9c398080808004800280808080018008808080208080108080802000010001",
    ];
    assert_eq!(hex(&run), expected.concat());

    let Request::Run(inner) = request(b"ls\0-l\0", &[mount]) else { panic!("another request") };
    let submission = Submission { token: Token([0xcc; 32]), key: Some(Key([0xdd; 16])), run: inner };
    // The same run, behind a token and a key: 1 + 32 + 1 + 16 bytes in place of 1.
    let submitted = ["746b020077000000", "01", &"cc".repeat(32), "01", &"dd".repeat(16), &hex(&run)[18..]];
    assert_eq!(hex(&encode(&Request::Submit(submission))), submitted.concat());

    let output = encode(&Reply::Output { stream: Stream::Report, part: Part::Tail, bytes: b"x" });
    assert_eq!(hex(&output), ["746b020005000000", "00", "02", "01", "0178"].concat());
    let live = encode(&Reply::Live { stream: Stream::Stderr, skipped: 300, bytes: b"xy" });
    assert_eq!(hex(&live), ["746b020007000000", "04", "01", "ac02", "027879"].concat());
    let refused = encode(&Reply::Refused(Refusal::NotRoot { uid: 1_000 }));
    assert_eq!(hex(&refused), ["746b020004000000", "02", "01", "e807"].concat());

    let done = encode(&Reply::Done(receipt()));
    let summary = format!("ac02{}", "aa".repeat(32));
    let layers = format!("{}01031a{}", "00".repeat(19), "00".repeat(3));
    let expected = [
        "746b0200e1000000".to_owned(),
        "01".to_owned(),                                 // Done
        "0501".to_owned(),                               // cause: output limit, of stderr
        "010109".to_owned(),                             // end: signalled, 9
        "0100020103010401050206000600070202".to_owned(), // usage
        summary.repeat(3),
        "01".repeat(Stage::COUNT) + "188001", // times
        layers,
        "07".to_owned() + &"bb".repeat(32),
        "010103612e62bb03010203040500".to_owned(), // egress: a mirror, one line: host, port, verdict, four numbers; none unlisted
    ];
    assert_eq!(hex(&done), expected.concat());
}

#[test]
fn what_is_signed_is_pinned() {
    let statement = Statement { peer_uid: 1_000, request_digest: [0xee; 32], receipt: receipt() };
    let mut buffer = [0; Statement::MAX_BYTES];
    let text = statement.to_be_signed(&mut buffer).unwrap().to_vec();
    let (context, body) = text.split_at(Statement::CONTEXT.len());
    assert_eq!(context, b"tack sandbox receipt 2\0");
    assert_eq!(hex(&body[..34]), ["e807", &"ee".repeat(32)].concat());
    assert_eq!(postcard::from_bytes::<Statement>(body), Ok(statement));
    let signed = encode(&Reply::Signed(SignedReceipt { statement, signature: [[1; 32], [2; 32]] }));
    assert_eq!(hex(&signed[8..9]), "03");
    assert_eq!(hex(&signed[signed.len() - 64..]), "01".repeat(32) + &"02".repeat(32));
}

/// A payload chooses the names in its log: whatever they are, the daemon can sign what it did.
#[test]
fn the_longest_receipt_can_be_signed() {
    let mut log = EgressLog::new();
    for index in 10..27 {
        let host = Host::new(&format!("{index}{}", "a".repeat(Host::MAX_BYTES - 2))).unwrap();
        let (verdict, count, most) = (Verdict::TimedOut, u32::MAX, u64::MAX);
        let line =
            Connections { host, port: u16::MAX, verdict, count, bytes_out: most, bytes_in: most, duration_us: most };
        log.add(&line);
    }
    assert_eq!((log.lines().len(), log.unlisted()), (MAX_EGRESS_LINES, u32::MAX));
    let mut buffer = [0; EgressLog::MAX_BYTES];
    assert_eq!(postcard::to_slice(&log, &mut buffer).unwrap().len(), MAX_EGRESS_LINES * (253 + 2 + 3 + 1 + 35) + 6);
    let (most, reason) = (Figure::Measured(u64::MAX), Reason::GroupRefused { errno: i32::MIN });
    let receipt = Receipt {
        cause: Cause::SetUp(SetUpFailure { stage: Stage::Egress, errno: i32::MIN, mount: Some(u8::MAX) }),
        usage: Usage {
            wall_us: u64::MAX,
            cpu_us: most,
            user_us: most,
            system_us: most,
            memory_peak_bytes: most,
            max_rss_bytes: most,
            processes_peak: most,
            forks_refused: most,
            oom_kills: most,
        },
        streams: [StreamSummary { bytes_total: u64::MAX, sha256: [0xff; 32] }; 3],
        times: Times { stage_us: [u32::MAX; Stage::COUNT], set_up_us: u64::MAX, tear_down_us: u64::MAX },
        layers: Layers::all(LayerState::Inactive(reason)),
        egress: EgressRecord::Mirror(log),
        ..receipt()
    };
    let statement = Statement { peer_uid: u32::MAX, request_digest: [0xff; 32], receipt };
    let mut buffer = [0; Statement::MAX_BYTES];
    assert!(statement.to_be_signed(&mut buffer).is_some());
}

/// Variants are only ever appended: each keeps its index, and so its byte.
#[test]
fn the_indexes_of_variants_are_pinned() {
    fn indexes<T: serde::Serialize>(values: &[T]) -> Vec<u8> {
        let mut buffer = [0; 64];
        values.iter().map(|value| postcard::to_slice(value, &mut buffer).unwrap()[0]).collect()
    }
    let counted = |count: u8| (0..count).collect::<Vec<u8>>();
    let failure = SetUpFailure { stage: Stage::Exec, errno: 1, mount: None };
    let causes = [
        Cause::Exited,
        Cause::Signalled,
        Cause::Wall,
        Cause::Cpu,
        Cause::OutOfMemory,
        Cause::OutputLimit(Stream::Stdout),
        Cause::Cancelled,
        Cause::SetUp(failure),
        Cause::CommandNotFound,
        Cause::CommandNotExecutable { errno: 1 },
        Cause::Killed,
        Cause::Idle,
        Cause::SeccompKill,
    ];
    assert_eq!(indexes(&causes), counted(13));
    let reasons = [
        Reason::NotAsked,
        Reason::NotReached,
        Reason::NoController,
        Reason::GroupRefused { errno: 1 },
        Reason::KernelTooOld,
        Reason::FilesystemUnsupported,
        Reason::Killed,
        Reason::Unreadable { errno: 1 },
    ];
    assert_eq!(indexes(&reasons), counted(8));
    let refusals = [
        Refusal::Malformed,
        Refusal::NotRoot { uid: 1 },
        Refusal::Threads { count: 2 },
        Refusal::Kernel(Need::Landlock),
        Refusal::Peer { uid: 1 },
        Refusal::Token,
        Refusal::Busy { running: 1 },
        Refusal::Ceiling { limit: Limit::Wall, most: 1 },
        Refusal::Source { mount: 0, problem: SourceProblem::Kind },
        Refusal::InFlight,
        Refusal::KeyReused,
        Refusal::NoStore { errno: 1 },
    ];
    assert_eq!(indexes(&refusals), counted(12));
    assert_eq!(indexes(Limit::ALL), counted(9));
    assert_eq!(indexes(SourceProblem::ALL), counted(7));
    let first_and_last = |names: &[&str]| (names[0].to_owned(), names[names.len() - 1].to_owned(), names.len());
    let stages: Vec<_> = Stage::ALL.iter().map(|stage| stage.name()).collect();
    assert_eq!(first_and_last(&stages), ("request".into(), "egress".into(), 25));
    let layers: Vec<_> = Layer::ALL.iter().map(|layer| layer.name()).collect();
    assert_eq!(first_and_last(&layers), ("user_namespace".into(), "socket_memory_limit".into(), 23));
    assert_eq!(indexes(Stage::ALL), counted(25));
    assert_eq!(indexes(Layer::ALL), counted(23));
    assert_eq!(indexes(&[Access::ReadOnly, Access::ReadWrite, Access::Scratch]), counted(3));
    assert_eq!(indexes(&[End::Exited { status: 0 }, End::Signalled { signal: 0 }]), counted(2));
    assert_eq!(indexes(&[Figure::Measured(0), Figure::Sampled(0), Figure::Unavailable(Reason::NotAsked)]), counted(3));
}

#[test]
fn a_bad_frame_says_what_is_bad() {
    let good = encode(&request(b"ls\0", &[]));
    let with = |change: fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        frame::decode::<Request>(&frame).map(|_| ())
    };
    let body = good.len() - HEADER_BYTES;
    assert_eq!(with(|_| ()), Ok(()));
    assert_eq!(with(|frame| frame[0] = b'T'), Err(FrameError::Magic { found: *b"Tk" }));
    assert_eq!(with(|frame| frame[2] = 3), Err(FrameError::Version { found: 3 }));
    assert_eq!(with(|frame| frame[3] = 1), Err(FrameError::Version { found: VERSION + 256 }));
    assert_eq!(with(|frame| frame[6] = 0x20), Err(FrameError::TooLong { bound_bytes: MAX_BODY_BYTES }));
    assert_eq!(with(Vec::clear), Err(FrameError::Length { expected_bytes: HEADER_BYTES, found_bytes: 0 }));
    let length = |found_bytes| FrameError::Length { expected_bytes: body, found_bytes };
    assert_eq!(with(|frame| frame.push(0)), Err(length(body + 1)));
    assert_eq!(with(|frame| frame.truncate(frame.len() - 1)), Err(length(body - 1)));
    assert_eq!(with(|frame| frame[HEADER_BYTES] = 9), Err(FrameError::Body), "an unknown request");
    let longer = |frame: &mut Vec<u8>| {
        frame.push(0);
        frame[4] += 1;
    };
    assert_eq!(with(longer), Err(FrameError::Body), "a field that this version does not know");
    assert_eq!(with(|frame| frame[HEADER_BYTES + 4] = b'x'), Err(FrameError::Body), "a string without its end");
}

#[test]
fn large_requests_are_bounded_errors_or_borrowed_views() {
    let many = b"x\0".repeat(10_000);
    let frame = encode(&request(&many, &[]));
    let Request::Run(run) = frame::decode(&frame).unwrap() else { panic!("another request") };
    assert_eq!(run.argv.iter().count(), 10_000);
    let range = frame.as_ptr_range();
    assert!(range.contains(&run.argv.as_bytes().as_ptr()), "decoding copies nothing");

    let long = [vec![b'x'; 128 << 10], vec![0]].concat();
    let frame = encode(&request(&long, &[]));
    let Request::Run(run) = frame::decode(&frame).unwrap() else { panic!("another request") };
    assert_eq!(run.argv.iter().next().unwrap().count_bytes(), 128 << 10);

    let huge = [vec![b'x'; MAX_BODY_BYTES], vec![0]].concat();
    let mut buffer = vec![0; 2 * MAX_FRAME_BYTES];
    let error = frame::encode(&request(&huge, &[]), &mut buffer).unwrap_err();
    assert_eq!(error, FrameError::TooLong { bound_bytes: MAX_BODY_BYTES });
    for size in [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 5] {
        assert!(matches!(frame::encode(&request(b"ls\0", &[]), &mut buffer[..size]), Err(FrameError::TooLong { .. })));
    }
}

#[test]
fn one_mount_too_many_is_an_error_on_both_sides() {
    let mount = Mount { target: b"/b", access: Access::ReadOnly };
    let mut mounts = Mounts::new();
    for _ in 0..MAX_MOUNTS {
        mounts.push(mount).unwrap();
    }
    let full = encode(&request(b"ls\0", mounts.as_slice()));
    assert!(frame::decode::<Request>(&full).is_ok());
    assert!(mounts.push(mount).is_err());
    // The same by hand: one more in the list than a sandbox takes.
    let position = full.iter().position(|byte| usize::from(*byte) == MAX_MOUNTS).unwrap();
    let mut over = full.clone();
    over[position] += 1;
    over.splice(position + 1..=position, [2, b'/', b'b', 0]);
    let length = u32::try_from(over.len() - HEADER_BYTES).unwrap();
    over[4..8].copy_from_slice(&length.to_le_bytes());
    assert_eq!(frame::decode::<Request>(&over).map(|_| ()), Err(FrameError::Body));
}

/// A small generator, so that the run is the same everywhere (xorshift64*, Vigna 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }
}

/// Whatever decodes encodes again to something that decodes to the same.
fn decodes_or_errs(frame: &[u8]) -> bool {
    let mut buffer = vec![0; MAX_FRAME_BYTES];
    let request = frame::decode::<Request>(frame);
    if let Ok(request) = &request {
        let again = frame::encode(request, &mut buffer).unwrap();
        assert_eq!(frame::decode::<Request>(again).as_ref(), Ok(request));
        let (Request::Run(run) | Request::Submit(Submission { run, .. })) = request;
        let _ = (run.argv.iter().count(), run.environment.iter().count(), format!("{run:?}"));
    }
    let reply = frame::decode::<Reply>(frame);
    if let Ok(reply) = &reply {
        let again = frame::encode(reply, &mut buffer).unwrap();
        assert_eq!(frame::decode::<Reply>(again).as_ref(), Ok(reply));
        if let Reply::Done(receipt) = reply {
            let _ = (receipt.shell_status(), receipt.exit_status(), receipt.layers.active().count());
            assert!(!format!("{} {receipt:?}", receipt.cause).is_empty());
        }
    }
    request.is_ok() || reply.is_ok()
}

#[test]
fn any_bytes_decode_to_a_value_or_an_error() {
    let mount = Mount { target: b"/task", access: Access::ReadOnly };
    let seeds = [
        encode(&request(b"ls\0-l\0", &[mount, mount])),
        encode(&request(b"", &[])),
        encode(&Reply::Output { stream: Stream::Stdout, part: Part::Head, bytes: b"some output" }),
        encode(&Reply::Done(receipt())),
        encode(&Reply::Refused(Refusal::Kernel(Need::MountApi))),
    ];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut decoded = 0;
    for round in 0..60_000 {
        let mut frame = if round % 8 == 0 {
            (0..random.below(64)).map(|_| random.next().to_le_bytes()[0]).collect()
        } else {
            seeds[random.below(seeds.len())].clone()
        };
        for _ in 0..random.below(4) {
            if frame.is_empty() {
                break;
            }
            let at = random.below(frame.len());
            match random.below(4) {
                0 => frame[at] = random.next().to_le_bytes()[0],
                1 => frame[at] ^= 1 << random.below(8),
                2 => frame.truncate(at),
                _ => frame.insert(at, random.next().to_le_bytes()[0]),
            }
        }
        // Half the time the length is made to fit, so that the body is looked at.
        if frame.len() >= HEADER_BYTES && round % 2 == 0 {
            let length = u32::try_from(frame.len() - HEADER_BYTES).unwrap();
            frame[4..8].copy_from_slice(&length.to_le_bytes());
        }
        decoded += usize::from(decodes_or_errs(&frame));
    }
    // Both ends were seen: values and errors.
    assert!((1_000..59_000).contains(&decoded), "{decoded}");
}

/// Strings without NUL, packed.
fn packed() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::collection::vec(1..=255_u8, 0..20), 0..20)
        .prop_map(|strings| strings.into_iter().flat_map(|string| [string, vec![0]].concat()).collect())
}

type OwnedMount = (Vec<u8>, bool);

proptest! {
    #[test]
    fn a_request_survives_the_wire(
        argv in packed(),
        environment in packed(),
        directory in prop::collection::vec(any::<u8>(), 0..40),
        mounts in prop::collection::vec(any::<OwnedMount>(), 0..MAX_MOUNTS),
        limits in any::<(u64, u64, u64, u32, u64, u32, u64, u32, u64)>(),
        report in any::<bool>(),
    ) {
        let mut list = Mounts::new();
        for (target, writable) in &mounts {
            let access = if *writable { Access::ReadWrite } else { Access::ReadOnly };
            list.push(Mount { target, access }).unwrap();
        }
        let (wall_us, cpu_us, memory_bytes, processes, file_bytes, open_files, output_bytes, kept_bytes, tmp_bytes) = limits;
        let request = Request::Run(RunRequest {
            argv: Strings::new(&argv).unwrap(),
            environment: Strings::new(&environment).unwrap(),
            directory: &directory,
            mounts: list,
            limits: RunLimits {
                wall_us, cpu_us, memory_bytes, processes, file_bytes, open_files, output_bytes, kept_bytes, tmp_bytes,
                idle_us: report.then_some(wall_us),
            },
            report,
            live: !report,
            egress: if report { Egress::Mirror } else { Egress::None },
        });
        let frame = encode(&request);
        prop_assert_eq!(frame::decode::<Request>(&frame), Ok(request));
    }

    #[test]
    fn any_bytes_at_all(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let length = u32::try_from(bytes.len()).unwrap();
        let header = [b"tk".as_slice(), &VERSION.to_le_bytes(), &length.to_le_bytes()].concat();
        decodes_or_errs(&[header, bytes].concat());
    }
}

#[test]
fn a_token_is_64_digits() {
    assert_eq!(Token::parse(&[&b"0f".repeat(32)[..], b"\n"].concat()), Some(Token([0x0f; 32])));
    assert_eq!(Token::parse(&b"0F".repeat(32)), Some(Token([0x0f; 32])));
    for bad in [&b"0f".repeat(31)[..], &b"0f".repeat(33), &b"0g".repeat(32), &b"+f".repeat(32), b"", b"f"] {
        assert_eq!(Token::parse(bad), None);
    }
}

#[test]
fn a_receipt_reads_by_name_in_json_and_comes_back() {
    type Change = fn(&mut serde_json::Value);
    let receipt = receipt();
    let json = serde_json::to_value(receipt).unwrap();
    assert_eq!(json["policy_digest"], "bb".repeat(32));
    assert_eq!(json["streams"][0]["sha256"], "aa".repeat(32));
    assert_eq!(json["layers"]["seccomp"], "active");
    assert_eq!(json["layers"]["swap_limit"]["inactive"]["group_refused"]["errno"], 13);
    assert_eq!(json["times"]["stage_us"]["landlock"], 1);
    assert_eq!(serde_json::from_value::<Receipt>(json.clone()).unwrap(), receipt);
    let refused = |change: Change| {
        let mut json = json.clone();
        change(&mut json);
        serde_json::from_value::<Receipt>(json).unwrap_err().to_string()
    };
    #[rustfmt::skip]
    let cases: [(Change, &str); 4] = [
        (|it| it["policy_digest"] = "bb".into(),                                     "64 hexadecimal digits"),
        (|it| it["policy_digest"] = "g".repeat(64).into(),                           "64 hexadecimal digits"),
        (|it| { it["layers"].as_object_mut().unwrap().remove("seccomp"); },          "a map of 23 names"),
        (|it| it["layers"]["moat"] = "active".into(),                                "unknown variant `moat`"),
    ];
    for (change, sentence) in cases {
        assert!(refused(change).contains(sentence), "{sentence}: {}", refused(change));
    }
    let twice = json["layers"].to_string().replacen('{', "{\"seccomp\":\"active\",", 1);
    assert!(serde_json::from_str::<Layers>(&twice).unwrap_err().to_string().contains("stands twice"));
}
