//! The values of all settings.

use super::directive::{Directive, Flags, Id, Initial, Key, Kind, Special};
use super::shapes::{Addresses, Directory, KeyspaceEvents, OomScores, OutputLimits, Percentiles, SavePoints};
use super::tables::{self, network};
use super::value::{Refusal, Setting, Value};
use kvick_runtime::affinity;

/// One value for each directive.
#[derive(Clone, Debug, PartialEq)]
pub struct Values(Vec<Value>);

impl Values {
    /// The defaults. Fails if the working directory cannot be determined.
    pub fn defaults() -> std::io::Result<Self> {
        let directory = Directory::current()?;
        Ok(Self(tables::ids().map(|id| initial(id, &directory)).collect()))
    }

    /// Reads a setting.
    pub fn read<T: Setting>(&self, key: Key<T>) -> T {
        T::of(self.value(key.id()))
    }

    /// The value of any setting.
    pub fn value(&self, id: Id) -> &Value {
        &self.0[usize::from(id.0)]
    }

    /// A setting in the form of CONFIG GET.
    pub fn show(&self, id: Id) -> Vec<u8> {
        self.value(id).show(&id.directive().kind)
    }

    /// Replaces a value by another of the same kind.
    pub(super) fn put(&mut self, id: Id, value: Value) {
        self.0[usize::from(id.0)] = value;
    }

    /// Parses and checks a new value for a directive, without storing it.
    pub(super) fn parse(&self, id: Id, args: &[&[u8]]) -> Result<Value, Refusal> {
        let Directive { kind, check, .. } = id.directive();
        let mut value = Value::parse(kind, args, self.value(id))?;
        if let Some(check) = check {
            check(&mut value, self)?;
        }
        Ok(value)
    }

    /// Parses and checks a new value given as one text. For directives with several arguments, the text is split at
    /// every single blank.
    pub(super) fn parse_text(&self, id: Id, text: &[u8]) -> Result<Value, Refusal> {
        if !id.directive().flags.contains(Flags::MULTI_ARG) {
            return self.parse(id, &[text]);
        }
        let args: Vec<&[u8]> = if text.is_empty() { Vec::new() } else { text.split(|byte| *byte == b' ').collect() };
        self.parse(id, &args)
    }
}

/// The default of a directive.
pub(super) fn initial(id: Id, directory: &Directory) -> Value {
    let directive = id.directive();
    match (directive.initial, &directive.kind) {
        (Initial::Bool(on), _) => Value::Bool(on),
        (Initial::Integer(number), _) => Value::Integer(number),
        (Initial::Cores, kind) => Value::Integer(cores(kind)),
        (Initial::Word(word), _) => Value::Word(word),
        (Initial::Text(text), _) => Value::Text(text.map(Into::into)),
        (Initial::Special, Kind::Special(special)) => match special {
            Special::Directory => Value::Directory(directory.clone()),
            Special::SavePoints => Value::SavePoints(SavePoints::default()),
            Special::OutputLimits => Value::OutputLimits(OutputLimits::default()),
            Special::OomScores => Value::OomScores(OomScores::default()),
            Special::KeyspaceEvents => Value::KeyspaceEvents(KeyspaceEvents::default()),
            Special::Addresses if id == network::BIND.id() => Value::Addresses(Addresses::any()),
            Special::Addresses => Value::Addresses(Addresses::none()),
            Special::Percentiles => Value::Percentiles(Percentiles::default()),
            Special::Primary => Value::Primary(None),
        },
        (Initial::Special, kind) => unreachable!("{kind:?} has a plain default"),
    }
}

/// The number of workers that suits the machine, within the bounds of the directive.
fn cores(kind: &Kind) -> i128 {
    let cores = affinity::default_workers() as i128;
    match kind {
        Kind::Integer { min, max, .. } => cores.clamp(*min, *max),
        _ => cores,
    }
}
