//! Security: passwords, access control, dangerous commands, scripts.

use super::*;
use crate::directive::{Directive, Key, Typed, boolean, integer, optional, text, theme, word};
use crate::value::Text;
use crate::words::{AclPubsubDefault, ProtectedAction};

theme! {
    after tls::END;
    REQUIREPASS: Option<Text> = optional("requirepass").sensitive().works();
    ACLFILE: Text = text("aclfile", "").immutable().works();
    ACLLOG_MAX_LEN: u64 = integer("acllog-max-len", 0, I64_MAX, 128).works();
    ACL_PUBSUB_DEFAULT: AclPubsubDefault = word("acl-pubsub-default", AclPubsubDefault::Resetchannels as u8).works();
    ENABLE_PROTECTED_CONFIGS: ProtectedAction =
        word("enable-protected-configs", ProtectedAction::No as u8).immutable().works();
    ENABLE_DEBUG_COMMAND: ProtectedAction = word("enable-debug-command", ProtectedAction::No as u8).immutable().works();
    ENABLE_MODULE_COMMAND: ProtectedAction =
        word("enable-module-command", ProtectedAction::No as u8).immutable().works();
    BUSY_REPLY_THRESHOLD: u64 = integer("busy-reply-threshold", 0, I64_MAX, 5000).alias("lua-time-limit").works();
    LUA_ENABLE_INSECURE_API: bool =
        boolean("lua-enable-insecure-api", false).alias("lua-enable-deprecated-api").hidden().protected().works();
}
