import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { type Files, nodeFiles, syncFolder, writeAll } from '../files.ts';
import { type PrivacyEvent, composed, parseEvent, selfComposed, showEvent } from './events.ts';
import { type Privatised, assertPrivatised } from './sum.ts';

/**
 * The append-only record of what a run spent: one JSON line for each step, on disk before the step's update is used,
 * each line carrying the SHA-256 of itself and of all before it. Node only.
 */
export interface Ledger {
  /** Lines so far. */
  readonly length: number;
  /** The last line's chain digest (hex); 64 zeros when there is no line. */
  readonly head: string;
  /**
   * Records that `step` released `event`, with the digest of the noised sum, and those of further releases, which are
   * post-processing of it and charge nothing. Settles once the line is durable; use
   * the update only then. Throws GhostgradError when the line could not be made durable; the ledger then refuses
   * every further line.
   */
  charge(step: number, event: PrivacyEvent, digest: string, further?: readonly FurtherDigest[]): Promise<void>;
  close(): Promise<void>;
}

/** What a ledger says, recomputed from its lines. */
export interface LedgerReading {
  /** Everything charged, repeated steps included. */
  readonly event: PrivacyEvent;
  readonly lines: readonly LedgerLine[];
  readonly head: string;
  /** The last line was cut off in writing: its step's update was never used. */
  readonly torn: boolean;
  /** Bytes of the whole lines. */
  readonly bytes: number;
  /** Why the ledger cannot be relied upon; empty when its chain holds. */
  readonly problems: readonly string[];
}

export interface LedgerLine {
  readonly step: number;
  readonly event: PrivacyEvent;
  /** SHA-256 of the noised sum, hex. */
  readonly digest: string;
  /** What became of the noised sum by more noise on top of it: covered by the event. */
  readonly further?: readonly FurtherDigest[] | undefined;
}

/** A further release of a step. */
export interface FurtherDigest {
  /** σ of all noise that is on it. */
  readonly multiplier: number;
  readonly digest: string;
}

const origin = '0'.repeat(64);
const sha256 = (...parts: readonly (string | Uint8Array)[]): string =>
  parts.reduce((hash, part) => hash.update(part), createHash('sha256')).digest('hex');

/**
 * SHA-256 (hex) of what a step released: names, lengths and values of the noised gradient, in the order of the names, and,
 * under adaptive thresholds, the noised fractions, and noised metrics.
 */
export function digestOf(privatised: Privatised): string {
  assertPrivatised(privatised);
  const parts = [...privatised.gradients]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([name, values]) => [
      JSON.stringify([name, values.length]),
      new Uint8Array(values.buffer, values.byteOffset, values.byteLength),
    ]);
  const { fractions, metrics } = privatised;
  return sha256(
    ...parts, ...(fractions === null ? [] : [JSON.stringify({ fractions })]), ...(metrics === null ? [] : [JSON.stringify({ metrics })]),
  );
}

/** A new ledger at `path`. Throws GhostgradError when the file exists or cannot be written. */
export async function createLedger(path: string, files: Files = nodeFiles): Promise<Ledger> {
  const file = opened(path, 'wx', files);
  written(path, () => syncFolder(dirname(path), files));
  return ledgerOn(path, file, files, 0, origin);
}

/**
 * The ledger at `path`, to be continued; a line that was cut off in writing is dropped.
 * Throws GhostgradError when its chain does not hold.
 */
export async function openLedger(path: string, files: Files = nodeFiles): Promise<Ledger & Pick<LedgerReading, 'lines'>> {
  const { lines, head, bytes, torn, problems } = await verifyLedger(path);
  const [problem] = problems;
  if (problem !== undefined) {
    throw new GhostgradError({
      what: 'the ledger does not hold',
      where: path,
      found: problem,
      fix: 'the budget that this run spent is unknown: start a new run',
    });
  }
  const file = opened(path, 'r+', files);
  written(path, () => {
    if (torn) files.truncate(file, bytes);
    files.sync(file);
    // Its name may never have been made durable.
    syncFolder(dirname(path), files);
  });
  return Object.assign(ledgerOn(path, file, files, lines.length, head, bytes), { lines });
}

/** Reads the ledger at `path` and checks its chain. Throws GhostgradError only when the file cannot be read. */
export async function verifyLedger(path: string): Promise<LedgerReading> {
  const content = await readFile(path).catch((cause: unknown) => {
    throw new GhostgradError({ what: 'the ledger cannot be read', where: path, found: reasonOf(cause) }, { cause });
  });
  return parseLedger(content);
}

/** What a ledger says, and whether its chain holds. */
export function parseLedger(content: Buffer): LedgerReading {
  const bytes = content.lastIndexOf(10) + 1;
  const lines: LedgerLine[] = [];
  let head = origin;
  const problems: string[] = [];
  for (const [i, text] of content.toString('utf8', 0, bytes).split('\n').slice(0, -1).entries()) {
    const line = parseLine(text, head);
    if (typeof line === 'string') {
      problems.push(`line ${i + 1}: ${line}`);
      break;
    }
    lines.push(line);
    head = line.chain;
  }
  return { event: chargedBy(lines), lines, head, torn: bytes < content.length, bytes, problems };
}

function ledgerOn(path: string, file: number, files: Files, length: number, head: string, position = 0): Ledger {
  let broken = false;
  let open = true;
  return {
    get length() {
      return length;
    },
    get head() {
      return head;
    },
    async charge(step, event, digest, further) {
      if (broken)
        throw new GhostgradError({ what: 'the ledger was left incomplete by an earlier failure', where: path });
      const { text, chain } = chained({ step, event, digest, further }, head);
      const line = Buffer.from(text);
      // Until the line is durable no other may follow, and none may after a failure.
      broken = true;
      try {
        if (!open) throw new Error('the ledger is closed');
        writeAll(file, line, files, position);
        await files.syncData(file);
      } catch (cause) {
        throw new GhostgradError(
          {
            what: `step ${step} could not be charged to the ledger`,
            where: path,
            found: reasonOf(cause),
            fix: 'make space and resume the run: the step was not used',
          },
          { cause },
        );
      }
      position += line.length;
      length += 1;
      head = chain;
      broken = false;
    },
    close: async () => {
      if (!open) return;
      open = false;
      written(path, () => files.close(file));
    },
  };
}

/** A line as it stands in the file, and its chain digest. */
function chained({ step, event, digest, further }: LedgerLine, head: string): { readonly text: string; readonly chain: string } {
  const body = JSON.stringify({ step, event, digest, ...(further !== undefined && { further }) });
  const chain = sha256(head, body);
  return { text: `${body.slice(0, -1)},"chain":"${chain}"}\n`, chain };
}

/** The whole ledger of a single release, and its head. */
export function ledgerOfOne(line: LedgerLine): { readonly text: string; readonly head: string } {
  const { text, chain } = chained(line, origin);
  return { text, head: chain };
}

function parseLine(text: string, head: string): (LedgerLine & { readonly chain: string }) | string {
  let fields: Readonly<Record<string, unknown>>;
  let event: PrivacyEvent;
  try {
    fields = Object(JSON.parse(text)) as Readonly<Record<string, unknown>>;
    event = parseEvent(fields['event']);
  } catch {
    return 'is not a ledger line';
  }
  const { step, digest, chain, further } = fields;
  if (typeof step !== 'number' || typeof digest !== 'string' || typeof chain !== 'string')
    return 'lacks step, digest or chain';
  if (further !== undefined && !(Array.isArray(further) && further.every(isFurther))) return 'has further releases that are none';
  const suffix = `,"chain":"${chain}"}`;
  if (!text.endsWith(suffix) || sha256(head, `${text.slice(0, -suffix.length)}}`) !== chain) {
    return 'does not continue the chain: it, or a line before it, was changed, removed or inserted';
  }
  return { step, event, digest, ...(further !== undefined && { further }), chain };
}

const isFurther = (value: unknown): value is FurtherDigest => {
  const { multiplier, digest } = Object(value) as Readonly<Record<string, unknown>>;
  return typeof multiplier === 'number' && typeof digest === 'string';
};

/** The composition of all lines, equal neighbours counted together. */
function chargedBy(lines: readonly LedgerLine[]): PrivacyEvent {
  const runs: { text: string; event: PrivacyEvent; count: number }[] = [];
  for (const { event } of lines) {
    const text = showEvent(event);
    const last = runs.at(-1);
    if (last?.text === text) last.count += 1;
    else runs.push({ text, event, count: 1 });
  }
  return composed(runs.map(({ event, count }) => selfComposed(event, count)));
}

const opened = (path: string, flags: 'wx' | 'r+', files: Files): number => written(path, () => files.open(path, flags, 0o644));

function written<T>(path: string, operation: () => T): T {
  try {
    return operation();
  } catch (cause) {
    throw new GhostgradError({ what: 'the ledger cannot be written', where: path, found: reasonOf(cause) }, { cause });
  }
}

const reasonOf = (cause: unknown): string => (cause instanceof Error ? cause.message : String(cause));
