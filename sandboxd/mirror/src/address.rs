//! Which addresses a configured name may mean.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tack_sandbox_protocol::destination::Reach;

/// Whose an address is (IANA's special-purpose registries, RFC 6890 and after).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The whole Internet's.
    Public,
    /// A site's own.
    Private,
    /// Loopback, link-local, multicast, documentation, translation and whatever else names no host of one's own choice.
    Special,
}

/// Whose `address` is.
#[must_use]
pub fn kind(address: IpAddr) -> Kind {
    match address {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => kind_v6(address),
    }
}

fn kind_v4(address: Ipv4Addr) -> Kind {
    match address.octets() {
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Kind::Private,
        // This host; loopback; link-local, where clouds keep their metadata; protocol assignments; documentation;
        // benchmarks; relays of 6to4; multicast, reserved and broadcast.
        [0 | 127 | 224.., ..]
        | [169, 254, ..]
        | [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => Kind::Special,
        _ => Kind::Public,
    }
}

fn kind_v6(address: Ipv6Addr) -> Kind {
    let segments = address.segments();
    match segments {
        // Unique local.
        [0xfc00..=0xfdff, ..] => Kind::Private,
        // An address of the fourth version, mapped or behind a translator of the provider's: it counts as itself.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            let [a, b] = high.to_be_bytes();
            let [c, d] = low.to_be_bytes();
            kind_v4(Ipv4Addr::new(a, b, c, d))
        }
        // Of what is handed out: protocol assignments with Teredo, documentation, 6to4.
        [0x2001, 0x0000..=0x01ff | 0xdb8, ..] | [0x2002, ..] | [0x3fff, 0x0000..=0x0fff, ..] => Kind::Special,
        [0x2000..=0x3fff, ..] => Kind::Public,
        _ => Kind::Special,
    }
}

/// Whether a name of this reach may mean `address`.
#[must_use]
pub fn may_mean(reach: Reach, address: IpAddr) -> bool {
    match (reach, kind(address)) {
        (Reach::Pinned(pinned), _) => pinned == address,
        (Reach::Public | Reach::Private, Kind::Public) | (Reach::Private, Kind::Private) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        use Kind::{Private, Public, Special};
        #[rustfmt::skip]
        let cases = [
            ("1.1.1.1", Public), ("172.15.0.1", Public), ("172.32.0.1", Public), ("100.63.0.1", Public),
            ("223.255.255.254", Public), ("192.0.1.1", Public), ("198.20.0.1", Public),
            ("10.0.0.1", Private), ("172.16.0.1", Private), ("172.31.255.255", Private), ("192.168.0.1", Private),
            ("100.64.0.1", Private), ("100.127.0.1", Private), ("fd00::1", Private), ("fc00::1", Private),
            ("0.0.0.0", Special), ("0.1.2.3", Special), ("127.0.0.1", Special), ("127.9.9.9", Special),
            ("169.254.169.254", Special), ("192.0.0.8", Special), ("192.0.2.1", Special), ("192.88.99.1", Special),
            ("198.18.0.1", Special), ("198.51.100.1", Special), ("203.0.113.1", Special), ("224.0.0.1", Special),
            ("240.0.0.1", Special), ("255.255.255.255", Special),
            ("2606:4700::1111", Public), ("2a00::1", Public), ("64:ff9b::1.1.1.1", Public), ("::ffff:1.1.1.1", Public),
            ("::ffff:10.0.0.1", Private), ("64:ff9b::10.0.0.1", Private),
            ("::ffff:127.0.0.1", Special), ("64:ff9b::127.0.0.1", Special), ("64:ff9b:1::1", Special),
            ("::", Special), ("::1", Special), ("::1.1.1.1", Special), ("fe80::1", Special), ("fec0::1", Special),
            ("ff02::1", Special), ("2001::1", Special), ("2001:db8::1", Special), ("2002:7f00:1::", Special),
            ("3fff::1", Special), ("100::1", Special), ("4000::1", Special),
        ];
        for (address, expected) in cases {
            let address = address.parse().unwrap();
            assert_eq!(kind(address), expected, "{address}");
            assert_eq!(may_mean(Reach::Public, address), expected == Public, "{address}");
            assert_eq!(may_mean(Reach::Private, address), expected != Special, "{address}");
            assert!(may_mean(Reach::Pinned(address), address), "{address}");
            assert!(!may_mean(Reach::Pinned("9.9.9.9".parse().unwrap()), address), "{address}");
        }
    }
}
