// Figures from two samples: rates, and percentiles of the time between.

import { infoFields, number, object, pairs, subfields, text } from "./format.js";

/** The figures of a sample: the fields of INFO, and the histogram of each command. */
export function read(sample) {
  const [info, histogram] = sample.replies;
  const commands = {};
  for (const [name, value] of pairs(histogram)) {
    const { calls, histogram_usec: buckets } = object(value);
    commands[text(name)] = {
      calls: number(calls),
      buckets: pairs(buckets).map(([bound, total]) => [number(bound), number(total)]),
    };
  }
  return { time: sample.time_ms / 1000, info: infoFields(info), commands };
}

/** The increase of a counter per second. A counter that was reset counts from 0. */
export function rate(before, after, name) {
  const [from, to] = [Number(before.info[name]), Number(after.info[name])];
  return (to >= from ? to - from : to) / Math.max(after.time - before.time, 0.001);
}

/** The calls between two samples by the upper bound of their time, from cumulative histograms. */
export function callsByBound(before, after) {
  const calls = new Map();
  for (const [name, { buckets }] of Object.entries(after)) {
    const earlier = before[name]?.buckets ?? [];
    // A cumulative count that is not listed is that of the bound below.
    const upTo = (list, bound) => list.reduce((total, [other, count]) => (other <= bound ? count : total), 0);
    const isReset = upTo(earlier, Infinity) > upTo(buckets, Infinity);
    let last = 0;
    for (const [bound, total] of buckets) {
      const grown = total - (isReset ? 0 : upTo(earlier, bound));
      if (grown > last) calls.set(bound, (calls.get(bound) ?? 0) + grown - last);
      last = Math.max(last, grown);
    }
  }
  return [...calls].sort(([one], [other]) => one - other);
}

/** Percentiles in microseconds. Within a bucket, whose bounds differ by a factor of two, times are interpolated. */
export function percentiles(calls, shares) {
  const total = calls.reduce((sum, [, count]) => sum + count, 0);
  if (total === 0) return shares.map(() => NaN);
  return shares.map((share) => {
    let left = share * total;
    for (const [bound, count] of calls) {
      if (left <= count) return bound / 2 + (bound / 2) * (left / count);
      left -= count;
    }
    return calls.at(-1)[0];
  });
}

/** The share of lookups that found a key; NaN if there were none. */
export function hitRate(before, after) {
  const [hits, misses] = [rate(before, after, "keyspace_hits"), rate(before, after, "keyspace_misses")];
  return hits / (hits + misses);
}

/** What each worker did between two samples. */
export function workers(before, after) {
  const seconds = Math.max(after.time - before.time, 0.001);
  const names = Object.keys(after.info).filter((name) => /^kvick_worker_\d+$/.test(name));
  return names.map((name) => {
    const [from, to] = [subfields(before.info[name]), subfields(after.info[name])];
    const grown = (part) => Math.max(0, Number(to[part]) - Number(from[part] || 0));
    return {
      number: Number(name.slice("kvick_worker_".length)),
      busy: grown("busy_usec") / 1e6 / seconds,
      turns: grown("turns") / seconds,
      commands: grown("commands") / seconds,
    };
  });
}

/** What each command did between two samples, the most frequent first. */
export function commandRates(before, after) {
  const seconds = Math.max(after.time - before.time, 0.001);
  const rows = [];
  for (const [name, value] of Object.entries(after.info)) {
    if (!name.startsWith("cmdstat_")) continue;
    const [from, to] = [subfields(before.info[name]), subfields(value)];
    const [calls, usec] = ["calls", "usec"].map((part) => Math.max(0, Number(to[part]) - Number(from[part] || 0)));
    const command = name.slice("cmdstat_".length);
    const latency = subfields(after.info[`latency_percentiles_usec_${command}`]);
    rows.push({
      command: command.replace("|", " "),
      total: Number(to.calls),
      rate: calls / seconds,
      mean: calls > 0 ? usec / calls : Number(to.usec_per_call),
      p99: Number(latency.p99 ?? NaN),
      failed: Number(to.rejected_calls) + Number(to.failed_calls),
    });
  }
  return rows.sort((one, other) => other.rate - one.rate || other.total - one.total);
}
