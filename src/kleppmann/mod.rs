#![doc = include_str!("links.md")]
#![doc = include_str!("../../docs/kleppmann/README.md")]
// The text is in `docs/kleppmann`, and its code is compiled and run from here. `links.md` says where its
// links lead in rustdoc: of two definitions of a link the first counts, so the files keep their own.

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/kleppmann/1-efficiency.md")]
pub mod efficiency {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/kleppmann/2-paused-holder.md")]
pub mod paused_holder {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/kleppmann/3-counters.md")]
pub mod counters {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/kleppmann/4-clock-jump.md")]
pub mod clock_jump {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/kleppmann/5-forgetting.md")]
pub mod forgetting {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/kleppmann/6-acquiring.md")]
pub mod acquiring {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/kleppmann/7-late-packets.md")]
pub mod late_packets {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/kleppmann/8-synchrony.md")]
pub mod synchrony {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/kleppmann/9-consensus.md")]
pub mod consensus {}
