//! Leader election: of several operators, the one that holds a Lease acts.
//!
//! The holder renews the lease three times within its duration, and ends its process before the duration is over if it
//! cannot. Another operator takes a lease over that has not changed for the whole duration by its own clock, so clocks
//! need not agree.

use crate::metrics::Metrics;
use crate::pods::Connection;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use std::io;
use std::time::{Duration, Instant};

/// Name of the lease.
pub const NAME: &str = "kvick-operator";

/// What an operator has seen of the lease.
struct Election {
    own: String,
    duration: Duration,
    /// The version that was seen last, and since when.
    seen: Option<(String, Instant)>,
}

impl Election {
    /// The lease to write, if this operator may have it now.
    fn claim(&mut self, found: &Lease, now: Instant) -> Option<Lease> {
        let spec = found.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let version = found.metadata.resource_version.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != version) {
            self.seen = Some((version, now));
        }
        let is_unchanged = self.seen.as_ref().is_some_and(|(_, since)| now - *since >= self.duration);
        let is_own = holder == self.own;
        (is_own || holder.is_empty() || is_unchanged).then(|| {
            let time = Some(MicroTime(k8s_openapi::jiff::Timestamp::now()));
            let changes = spec.lease_transitions.unwrap_or(0) + i32::from(!is_own);
            let next = LeaseSpec {
                holder_identity: Some(self.own.clone()),
                lease_duration_seconds: Some(self.duration.as_secs().max(1) as i32),
                acquire_time: if is_own { spec.acquire_time.clone() } else { time.clone() },
                renew_time: time,
                lease_transitions: Some(changes),
                ..spec
            };
            Lease { metadata: found.metadata.clone(), spec: Some(next) }
        })
    }

    /// Tries to acquire or renew the lease. Fails if another operator updates it at the same time.
    fn attempt(&mut self, connection: &Connection, api: &Api<Lease>) -> io::Result<bool> {
        let found = match connection.wait(api.get_opt(NAME))? {
            Some(found) => found,
            None => {
                let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
                connection.wait(api.create(&PostParams::default(), &Lease { metadata, spec: None }))?
            }
        };
        let Some(next) = self.claim(&found, Instant::now()) else { return Ok(false) };
        connection.wait(api.replace(NAME, &PostParams::default(), &next))?;
        Ok(true)
    }
}

/// Waits until this process holds the lease, and keeps it from then on. If that fails, the process ends.
///
/// # Errors
/// If the process has no identity.
pub fn acquire(connection: &Connection, namespace: &str, duration: Duration, metrics: &Metrics) -> io::Result<()> {
    let api: Api<Lease> = Api::namespaced(connection.client.clone(), namespace);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    let since = k8s_openapi::jiff::Timestamp::now().as_nanosecond();
    let own = format!("{}_{}_{since:x}", host.trim(), std::process::id());
    let mut election = Election { own, duration, seen: None };
    let pause = duration / 5;
    println!("waiting for the lease {NAME} as {}", election.own);
    loop {
        match election.attempt(connection, &api) {
            Ok(true) => break,
            Ok(false) => metrics.note_connected(),
            Err(error) => eprintln!("cannot get the lease: {error}"),
        }
        metrics.note_alive();
        std::thread::sleep(pause);
    }
    let connection = connection.clone();
    std::thread::spawn(move || {
        let mut renewed = Instant::now();
        loop {
            std::thread::sleep(pause);
            let began = Instant::now();
            match election.attempt(&connection, &api) {
                Ok(true) => renewed = began,
                Ok(false) => end("another operator has the lease"),
                Err(error) => eprintln!("cannot renew the lease: {error}"),
            }
            if renewed.elapsed() > duration * 3 / 5 {
                end("the lease could not be renewed in time");
            }
        }
    });
    Ok(())
}

fn end(why: &str) -> ! {
    eprintln!("kvick-operator: {why}");
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn election(own: &str) -> Election {
        Election { own: own.into(), duration: Duration::from_secs(10), seen: None }
    }

    fn lease(holder: &str, version: &str) -> Lease {
        let spec = LeaseSpec { holder_identity: Some(holder.into()), ..LeaseSpec::default() };
        let metadata = ObjectMeta { resource_version: Some(version.into()), ..ObjectMeta::default() };
        Lease { metadata, spec: Some(spec) }
    }

    #[test]
    fn a_lease_that_is_renewed_stays_with_its_holder() {
        let mut other = election("b");
        let began = Instant::now();
        for second in 0..30 {
            let found = lease("a", &second.to_string());
            assert!(other.claim(&found, began + Duration::from_secs(second)).is_none());
        }
        assert!(election("a").claim(&lease("a", "1"), began).is_some());
    }

    #[test]
    fn a_lease_that_does_not_change_is_taken_over_after_its_duration() {
        let mut other = election("b");
        let began = Instant::now();
        assert!(other.claim(&lease("a", "1"), began).is_none());
        assert!(other.claim(&lease("a", "1"), began + Duration::from_secs(9)).is_none());
        let next = other.claim(&lease("a", "1"), began + Duration::from_secs(10)).expect("the lease");
        assert_eq!(next.spec.expect("a spec").holder_identity.as_deref(), Some("b"));
    }
}
