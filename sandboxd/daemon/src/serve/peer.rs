//! Who is asking, as the kernel tells it, and whether root allows it.

use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, sockopt};
use sha2::{Digest, Sha256};
use tack_sandbox_protocol::{Refusal, Token};

use crate::serve::config::Config;
use crate::sys::socket::peer_groups;

/// The process that connected, as it was then: passing its socket on does not change whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

impl Peer {
    /// Who is at the other end of `socket`.
    pub(crate) fn of(socket: impl AsFd) -> nix::Result<Self> {
        let credentials = getsockopt(&socket, sockopt::PeerCredentials)?;
        let groups = peer_groups(&socket)?;
        Ok(Self { uid: credentials.uid(), gid: credentials.gid(), groups })
    }

    /// Whether the peer is in this group.
    pub(crate) fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Refuses whom root has not allowed.
    pub(crate) fn check(&self, config: &Config) -> Result<(), Refusal> {
        let allowed = self.uid == 0 || config.uids.contains(&self.uid) || config.gids.iter().any(|it| self.is_in(*it));
        if allowed { Ok(()) } else { Err(Refusal::Peer { uid: self.uid }) }
    }
}

/// Refuses a token that is not root's. Digests are compared, so that the time tells nothing of the token.
pub(crate) fn check_token(token: &Token, config: &Config) -> Result<(), Refusal> {
    let shown: [u8; 32] = Sha256::digest(token.0).into();
    match config.token_digest {
        Some(expected) if expected != shown => Err(Refusal::Token),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn who_may_ask_is_root_s_to_say() {
        let config = Config { uids: vec![1_000], gids: vec![985], ..Config::default() };
        let peer = |uid, gid, groups: &[u32]| Peer { uid, gid, groups: groups.to_vec() };
        #[rustfmt::skip]
        let cases = [
            (peer(0, 0, &[]),             true),
            (peer(1_000, 5, &[]),         true),
            (peer(7, 985, &[]),           true),
            (peer(7, 5, &[6, 985]),       true),
            (peer(7, 5, &[6]),            false),
            (peer(985, 1_000, &[1_000]),  false),
        ];
        for (peer, allowed) in cases {
            assert_eq!(peer.check(&config).is_ok(), allowed, "{peer:?}");
        }
    }

    #[test]
    fn a_token_is_asked_for_where_root_has_one() {
        let none = Config::default();
        let one = Config { token_digest: Some(Sha256::digest([7; 32]).into()), ..Config::default() };
        assert_eq!(check_token(&Token([0; 32]), &none), Ok(()));
        assert_eq!(check_token(&Token([7; 32]), &one), Ok(()));
        assert_eq!(check_token(&Token([0; 32]), &one), Err(Refusal::Token));
    }

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        let groups = nix::unistd::getgroups().unwrap();
        assert_eq!((peer.uid, peer.gid), (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw()));
        assert_eq!(peer.groups, groups.iter().map(|it| it.as_raw()).collect::<Vec<_>>());
    }
}
