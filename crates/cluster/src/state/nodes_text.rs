//! The text of CLUSTER NODES, kept for a short time: clients of large clusters ask for it often.

use super::{ClientView, Cluster, Facts};
use std::sync::Arc;

/// How old the times of PINGs and PONGs in the text may be. Everything else is up to date.
const AGE_MAX_MS: u64 = 100;

/// Kinds of clients that get different texts: with TLS or not, with IPv6 or not.
const KINDS: usize = 4;

/// The texts that clients were given.
#[derive(Clone, Debug, Default)]
pub(super) struct NodesTexts([Option<NodesText>; KINDS]);

#[derive(Clone, Debug)]
struct NodesText {
    text: Arc<str>,
    made_ms: u64,
    revision: u64,
}

impl Cluster {
    /// The text of CLUSTER NODES, as [`Cluster::nodes_text`] makes it. The times of PINGs and PONGs in it may be up to
    /// 100 milliseconds old.
    pub fn shared_nodes_text(&mut self, client: ClientView, facts: &Facts<'_>) -> Arc<str> {
        let kind = usize::from(client.tls) | usize::from(client.ipv6) << 1;
        let (now_ms, revision) = (facts.ms(), self.topology_version.wrapping_add(self.text_changes));
        if let Some(known) = &self.nodes_texts.0[kind]
            && known.revision == revision
            && now_ms.saturating_sub(known.made_ms) < AGE_MAX_MS
        {
            return known.text.clone();
        }
        let text: Arc<str> = self.nodes_text(client, facts).into();
        self.nodes_texts.0[kind] = Some(NodesText { text: text.clone(), made_ms: now_ms, revision });
        text
    }
}
