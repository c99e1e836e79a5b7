//! Backups in a bucket of object storage that speaks the protocol of Amazon S3.
//!
//! A backup is the objects `PREFIX/NAME/shard-0.rdb`, ... and `PREFIX/NAME/manifest.json`. The manifest is written last
//! and removed first: only a backup with a manifest is listed.
//!
//! - [`settings`]: what the environment says; [`service`]: requests, signed and repeated; [`refusal`]: why one failed.
//! - [`upload`]: an object that grows while its data arrive; [`download`]: one that is read piece by piece.
//! - [`listing`]: which objects and unfinished uploads there are.
//!
//! Memory is bounded: a dump passes in pieces, whatever its size.

mod download;
mod listing;
mod refusal;
mod service;
mod settings;
#[cfg(test)]
mod tests;
mod upload;

use crate::manifest::{self, Manifest, is_name, is_plain};
use crate::storage::{Output, Staged, Storage, no_backup};
use download::Download;
use jiff::Timestamp;
use listing::{Object, Unfinished};
use refusal::Failure;
use service::{Client, Request};
use settings::Settings;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::time::Duration;
use upload::Upload;

/// A prefix in a bucket, with all backups below it.
pub(crate) struct Bucket {
    client: Client,
    /// Empty, or with a slash at its end.
    prefix: String,
}

impl Bucket {
    /// The bucket and prefix `BUCKET/PREFIX`, reached as the environment says, of which `variable` gives a variable.
    pub(crate) fn open(place: &str, variable: &dyn Fn(&str) -> Option<String>) -> io::Result<Bucket> {
        let settings = Settings::new(place, variable)?;
        Ok(Bucket { client: Client::new(&settings)?, prefix: settings.prefix })
    }

    fn key(&self, name: &str, file: &str) -> String {
        format!("{}{name}/{file}", self.prefix)
    }

    /// Objects of all backups, by name.
    fn objects(&self) -> Result<BTreeMap<String, Vec<Object>>, Failure> {
        let mut found = BTreeMap::<String, Vec<Object>>::new();
        for object in listing::objects(&self.client, &self.prefix)? {
            if let Some((name, _)) = self.split(&object.key) {
                found.entry(name.to_owned()).or_default().push(object);
            }
        }
        Ok(found)
    }

    /// Name and file of a key.
    fn split<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        let (name, file) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        (is_plain(name) && is_plain(file)).then_some((name, file))
    }

    fn has_manifest(&self, objects: &[Object]) -> bool {
        objects.iter().any(|object| self.split(&object.key).is_some_and(|(_, file)| file == manifest::FILE))
    }

    fn delete(&self, key: String) -> Result<(), Failure> {
        self.client.call(&Request::delete(key)).map(drop)
    }

    /// When something was added to an upload for the last time. `None` if it does not exist any more.
    fn last_change(&self, upload: &Unfinished) -> Result<Option<Timestamp>, Failure> {
        match listing::last_part(&self.client, upload) {
            Ok(part) => Ok(Some(part.map_or(upload.begun, |part| part.max(upload.begun)))),
            Err(Failure::Refused(refusal)) if refusal.is_missing() => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

impl std::fmt::Display for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, prefix '{}',", self.client.place(), self.prefix)
    }
}

impl Storage for Bucket {
    fn list(&self) -> io::Result<Vec<String>> {
        let objects = self.objects()?;
        // In the order of their names already.
        Ok(objects.into_iter().filter(|(_, objects)| self.has_manifest(objects)).map(|(name, _)| name).collect())
    }

    fn read(&self, name: &str, file: &str) -> io::Result<Box<dyn Read + Send>> {
        if !is_plain(name) || !is_plain(file) {
            return Err(no_backup(self, name));
        }
        match Download::open(&self.client, self.key(name, file)) {
            Ok(download) => Ok(Box::new(download)),
            Err(Failure::Refused(refusal)) if refusal.is_missing() && file == manifest::FILE => {
                Err(no_backup(self, name))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    fn stage(&self, name: &str) -> io::Result<Box<dyn Staged>> {
        // Settings that are wrong are found before a server makes a snapshot.
        listing::objects(&self.client, &self.key(name, ""))?;
        let bucket = Bucket { client: self.client.clone(), prefix: self.prefix.clone() };
        Ok(Box::new(StagedPrefix { bucket, name: name.to_owned(), is_published: false }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        if !is_plain(name) {
            return Err(no_backup(self, name));
        }
        let objects = listing::objects(&self.client, &self.key(name, ""))?;
        if !self.has_manifest(&objects) {
            return Err(no_backup(self, name));
        }
        // Without its manifest, a removal that is interrupted leaves no half backup behind.
        self.delete(self.key(name, manifest::FILE))?;
        for object in objects {
            self.delete(object.key)?;
        }
        Ok(())
    }

    fn remove_leftovers(&self, unchanged_for: Duration) -> io::Result<Vec<String>> {
        let uploads = listing::uploads(&self.client, &self.prefix)?;
        // Other things may be in the bucket: only what has the name of a backup is touched.
        let objects = self.objects()?.into_iter().filter(|(name, _)| is_name(name));
        let (complete, objects): (BTreeMap<_, _>, BTreeMap<_, _>) =
            objects.partition(|(_, objects)| self.has_manifest(objects));
        let is_old = |change: Timestamp| {
            Duration::try_from(Timestamp::now().duration_since(change)).is_ok_and(|age| age >= unchanged_for)
        };
        let (mut removed, mut alive) = (BTreeSet::new(), BTreeSet::new());
        for upload in uploads {
            let Some((name, _)) = self.split(&upload.key).filter(|(name, _)| is_name(name)) else { continue };
            match self.last_change(&upload)? {
                Some(change) if is_old(change) => {
                    let request = Request::abort(upload.key.clone(), &upload.id);
                    self.client.call(&request).map(drop).or_else(unless_missing)?;
                    removed.insert(name.to_owned());
                }
                Some(_) => drop(alive.insert(name.to_owned())),
                None => {}
            }
        }
        for (name, objects) in objects {
            if alive.contains(&name) || !objects.iter().all(|object| is_old(object.modified)) {
                removed.remove(&name);
                continue;
            }
            for object in objects {
                self.delete(object.key)?;
            }
            removed.insert(name);
        }
        Ok(removed.into_iter().filter(|name| !complete.contains_key(name)).collect())
    }
}

/// What should be removed may be gone already.
fn unless_missing(failure: Failure) -> Result<(), Failure> {
    match failure {
        Failure::Refused(refusal) if refusal.is_missing() => Ok(()),
        failure => Err(failure),
    }
}

struct StagedPrefix {
    bucket: Bucket,
    name: String,
    is_published: bool,
}

impl StagedPrefix {
    /// Removes all objects, as far as that is possible.
    fn remove(&self) -> Result<(), Failure> {
        let objects = listing::objects(&self.bucket.client, &self.bucket.key(&self.name, ""))?;
        objects.into_iter().try_for_each(|object| self.bucket.delete(object.key))
    }
}

impl Staged for StagedPrefix {
    fn create(&self, file: &str) -> io::Result<Box<dyn Output>> {
        Ok(Box::new(Upload::new(self.bucket.client.clone(), self.bucket.key(&self.name, file))))
    }

    fn publish(mut self: Box<Self>, manifest: &Manifest) -> io::Result<()> {
        // Another program may have taken these objects for leftovers.
        let objects = listing::objects(&self.bucket.client, &self.bucket.key(&self.name, ""))?;
        for dump in &manifest.shards {
            let key = self.bucket.key(&self.name, &dump.file);
            if !objects.iter().any(|object| object.key == key && object.size == dump.bytes) {
                let text =
                    format!("{key} was removed or replaced while the backup was made; does another program prune?");
                return Err(io::Error::other(text));
            }
        }
        let key = self.bucket.key(&self.name, manifest::FILE);
        self.bucket.client.call(&Request::put(key, manifest.text().into()))?;
        self.is_published = true;
        Ok(())
    }
}

impl Drop for StagedPrefix {
    fn drop(&mut self) {
        if !self.is_published {
            // What cannot be removed is not listed, and found by the next pruning.
            let _ = self.remove();
        }
    }
}
