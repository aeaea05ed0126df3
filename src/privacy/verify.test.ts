import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../test/support/temp.ts';
import { certificate } from './certificate.ts';
import type { Certificate } from './certificate-schema.ts';
import { composed, gaussian, poissonSampled, selfComposed } from './events.ts';
import { groupsOf } from './groups.ts';
import { createLedger, digestOf, verifyLedger } from './ledger.ts';
import { type PrivacyPlanOptions, privacyPlan } from './plan.ts';
import { clippedSum, privatise, withMeasures } from './sum.ts';
import { type Verification, verifyCertificate } from './verify.ts';

const groups = groupsOf([
  { name: 'a', parameters: ['v'], norm: 0.3, size: 2 },
  { name: 'b', parameters: ['w'], norm: 0.4, size: 3 },
]);
const options: PrivacyPlanOptions = {
  datasetSize: 1000, batchSize: 20, steps: 12, noiseMultiplier: 0.9, delta: 1e-5, groups, allocation: 'weighted',
  adaptive: { quantile: 0.5, learningRate: 0.2, budgetFraction: 0.1, rescaleTo: null },
};
const steps = 8;
const metrics = { measures: [{ name: 'trainingLoss', low: 0, high: 5 }, { name: 'trainingAccuracy', low: 0, high: 1 }], budgetFraction: 0.02 };

interface Released {
  readonly certificate: Certificate;
  /** The ledger's text. */
  readonly ledger: string;
}

/** A run of `steps` steps on no data, with what it leaves. */
async function run(changes: Partial<PrivacyPlanOptions> = {}, again = 0): Promise<Released> {
  const plan = privacyPlan({ ...options, ...changes });
  const keys = plan.startRatchet();
  const path = join(temporaryFolder().folder, 'ledger.jsonl');
  const ledger = await createLedger(path);
  for (let t = 0; t < steps; t++) {
    const sums = new Map([['v', new Float32Array(2)], ['w', new Float32Array(3)]]);
    const counted = plan.adaptive === null ? undefined : new Float32Array(0);
    const sum = clippedSum(sums, plan.groups, plan.rho, counted);
    if (plan.metrics !== null) withMeasures(sum, plan.metrics.measures.map((measure) => ({ measure, values: new Float32Array(0) })));
    const released = privatise(sum, plan, keys.advance());
    await ledger.charge(t, plan.event, digestOf(released));
    // A step that is drawn again is charged again.
    if (t === 3) for (let i = 0; i < again; i++) await ledger.charge(t, plan.event, digestOf(released));
  }
  await ledger.close();
  return {
    certificate: certificate({
      plan, steps, clipFunction: 'abadi', software: { ghostgrad: '0' }, ledger: { lines: ledger.length, head: ledger.head }, recharged: again,
    }),
    ledger: await readFile(path, 'utf8'),
  };
}

async function verified(value: unknown, ledger: string): Promise<Verification> {
  const { write } = temporaryFolder();
  return verifyCertificate(JSON.parse(JSON.stringify(value)), await verifyLedger(write('ledger.jsonl', ledger)));
}

/** `what (where)` of each problem. */
const said = ({ problems }: Verification): string[] => problems.map(({ what, where }) => `${what} (${where})`);

let made: Released;

/** All of the data at every step: ε has a closed form, so that thousands of checks take seconds. */
const cheap: Partial<PrivacyPlanOptions> = { sampling: 'full-batch', batchSize: 1000, noiseMultiplier: 5, metrics };

describe('verify', () => {
  beforeEach(async () => {
    made = await run();
  });

  it('finds nothing wrong with what a run leaves', async () => {
    const found = await verified(made.certificate, made.ledger);
    expect(found).toMatchObject({ holds: true, problems: [], epsilonClaimed: made.certificate.epsilon, delta: 1e-5 });
    expect(found.epsilonRecomputed).toBeCloseTo(made.certificate.epsilon, 2);
    expect(found.accountants.map(({ accountant }) => accountant)).toContain('pld');
  });

  it.each<[string, Partial<PrivacyPlanOptions>]>([
    ['fixed thresholds', { adaptive: undefined, allocation: 'global' }],
    ['all of the data, records replaced', { sampling: 'full-batch', batchSize: 1000, neighbors: 'replace-one', noiseMultiplier: 12 }],
    ['records left out of fixed-size batches', { sampling: 'without-replacement' }],
    ['truncated draws', { sampling: 'truncated-poisson' }],
    ['zeroed records', { neighbors: 'zero-out' }],
    ['privatised metrics', { metrics }],
  ])('nor with %s', async (_, changes) => {
    const { certificate: found, ledger } = await run(changes);
    expect(said(await verified(found, ledger))).toEqual([]);
  });

  it('nor with steps that were drawn and charged again', async () => {
    const { certificate: found, ledger } = await run({}, 2);
    expect(said(await verified(found, ledger))).toEqual([]);
    // Had they not been charged in the certificate, ε would be too small.
    const once = { ...found, event: made.certificate.event, epsilon: made.certificate.epsilon, guarantee: made.certificate.guarantee };
    expect(said(await verified(once, ledger))).toEqual(expect.arrayContaining([
      expect.stringContaining('ε is smaller than what was spent'), expect.stringContaining('event is not what the ledger says'),
    ]));
  });

  it('says that a seeded run guarantees nothing', async () => {
    const { certificate: found, ledger } = await run({ seed: 1 });
    expect(said(await verified(found, ledger))).toEqual(['the certificate guarantees nothing (guarantee)']);
  });
});

describe('a tampered ledger', () => {
  beforeEach(async () => {
    made = await run(cheap);
  });

  it('is noticed in every field of every line', async () => {
    const lines = made.ledger.trimEnd().split('\n');
    const edits: readonly ((line: string) => string)[] = [
      (line) => line.replace(/"step":(\d+)/, (_, step: string) => `"step":${Number(step) + 1}`),
      (line) => line.replace(/"sigma":[\d.]+/, '"sigma":9'),
      (line) => line.replace(/"rate":[\d.]+/, '"rate":0.001'),
      (line) => line.replace(/"digest":"./, (text) => `${text.slice(0, -1)}${text.endsWith('0') ? '1' : '0'}`),
      (line) => line.replace(/"chain":"./, (text) => `${text.slice(0, -1)}${text.endsWith('0') ? '1' : '0'}`),
      (line) => line.replace('{', '{ '),
    ];
    for (const i of lines.keys()) {
      for (const edit of edits) {
        const changed = lines.map((line, j) => (i === j ? edit(line) : line));
        expect(changed).not.toEqual(lines);
        const found = await verified(made.certificate, `${changed.join('\n')}\n`);
        expect(found.holds).toBe(false);
        expect(said(found)).toContain('the chain of the ledger is broken (ledger.jsonl)');
      }
    }
  });

  it('is noticed when it is shorter, longer, torn, reordered or gone', async () => {
    const lines = made.ledger.trimEnd().split('\n');
    const problems = async (kept: readonly string[]): Promise<string[]> =>
      said(await verified(made.certificate, kept.map((line) => `${line}\n`).join('')));
    for (let cut = 1; cut <= steps; cut++) {
      expect(await problems(lines.slice(0, -cut))).toEqual(expect.arrayContaining([
        'the ledger is shorter than when it was certified (ledger.lines)',
        'the ledger ends otherwise than when it was certified (ledger.head)',
        'steps are missing in the ledger (steps)',
      ]));
    }
    for (const i of lines.keys()) expect(await problems(lines.filter((_, j) => j !== i))).not.toEqual([]);
    expect(await problems([...lines, lines.at(-1)!])).not.toEqual([]);
    expect(await problems([lines[1]!, lines[0]!, ...lines.slice(2)])).not.toEqual([]);
    expect(said(await verified(made.certificate, made.ledger.slice(0, -1)))).toContain('the ledger ends in an incomplete line (ledger.jsonl)');
    expect(said(verifyCertificate(made.certificate, null))).toEqual(['no ledger, so what was released cannot be checked (ledger)']);
  });

  it('is noticed where its chain and the certificate’s head were made anew, as long as ε is not', async () => {
    const lines = made.ledger.trimEnd().split('\n');
    const rechained = (bodies: readonly string[]): { readonly ledger: string; readonly head: string; readonly lines: number } => {
      let head = '0'.repeat(64);
      const text = bodies.map((line) => {
        const body = line.replace(/,"chain":"[0-9a-f]{64}"\}$/, '}');
        head = createHash('sha256').update(head).update(body).digest('hex');
        return `${body.slice(0, -1)},"chain":"${head}"}\n`;
      });
      return { ledger: text.join(''), head, lines: text.length };
    };
    const forged = async (bodies: readonly string[], changes: Partial<Certificate> = {}): Promise<string[]> => {
      const { ledger, ...ends } = rechained(bodies);
      return said(await verified({ ...made.certificate, ledger: ends, ...changes }, ledger));
    };
    expect(await forged(lines)).toEqual([]);
    // A step removed from the middle, from the end, or with less noise.
    expect(await forged(lines.filter((_, i) => i !== 4))).toContain('steps are missing in the ledger (ledger.jsonl, line 5)');
    expect(await forged(lines.slice(0, -1))).toContain('steps are missing in the ledger (steps)');
    expect(await forged(lines.map((line, i) => (i === 4 ? line.replace(/"sigma":[\d.]+/, '"sigma":0.5') : line)))).toEqual(
      expect.arrayContaining([
        'a release that is not a step as the certificate describes it (ledger.jsonl, line 5)',
        'the certificate’s event is not what the ledger says was released (event)',
        expect.stringMatching(/^ε is smaller than what was spent/),
      ]),
    );
    // A release beside the steps that the certificate keeps quiet about.
    const extra = `{"step":7,"event":${JSON.stringify(gaussian(0.5))},"digest":"${'0'.repeat(64)}"}`;
    expect(await forged([...lines, extra])).toEqual(expect.arrayContaining([
      'a release that is not a step as the certificate describes it (ledger.jsonl, line 9)',
      'the certificate’s event is not what the ledger says was released (event)',
    ]));
  });
});

describe('a tampered certificate', () => {
  beforeEach(async () => {
    made = await run(cheap);
  });

  /**
   * What is as true with other values: nothing follows from names, versions, what accountants say of themselves, and the size
   * that an assumption names (the seventh, which may not be left out).
   */
  const free = /^(assumptions\.6$|software|unit|errorBound|metrics\.measures\.\d\.(low|high)|clipping\.(style|function)|clipping\.groups\.\d\.(name|parameters)|clipping\.threshold\.adaptive\.(quantile|learningRate|rescaleTo))/;

  it('is noticed in every field that something follows from', async () => {
    const reading = await verifyLedger(temporaryFolder().write('ledger.jsonl', made.ledger));
    const unnoticed = edited(made.certificate).filter(({ value }) => verifyCertificate(value, reading).holds).map(({ path }) => path);
    expect(unnoticed.filter((path) => !free.test(path))).toEqual([]);
    expect(unnoticed.length).toBeGreaterThan(3);
  });

  it('is noticed where ε, δ, σ or an event was changed, words and all', async () => {
    const { certificate: right, ledger } = made;
    const problems = async (changes: Partial<Certificate>): Promise<string[]> => {
      const changed = { ...right, ...changes };
      const guarantee = `(${changed.epsilon}, ${changed.delta})-differential privacy for each example, under the assumptions listed`;
      return said(await verified({ ...changed, guarantee }, ledger));
    };
    expect(await problems({})).toEqual([]);
    for (const factor of [0.5, 0.98, 0.999]) {
      const found = await problems({ epsilon: factor * right.epsilon });
      expect(found[0]).toMatch(new RegExp(`^ε is smaller than what was spent, by the accountant ${right.accountant} \\(epsilon\\)$`));
      if (factor === 0.5) expect(found).toHaveLength(new Set([right.accountant, 'pld']).size);
    }
    // More than was spent is true all the same.
    expect(await problems({ epsilon: 1.01 * right.epsilon })).toEqual([]);
    expect(await problems({ delta: 1e-9 })).toEqual(expect.arrayContaining([expect.stringMatching(/^ε is smaller than what was spent/)]));
    expect(await problems({ noise: { ...right.noise, multiplier: 2 } })).toEqual(expect.arrayContaining([
      'a release that is not a step as the certificate describes it (ledger.jsonl, line 1)',
      'does not follow from the other fields (noise.gradientMultiplier)',
    ]));
    for (const event of [selfComposed(poissonSampled(1, gaussian(5)), 7), composed([]), selfComposed(poissonSampled(1, gaussian(6)), 8)])
      expect(await problems({ event })).toContain('the certificate’s event is not what the ledger says was released (event)');
    expect(await problems({ accountant: 'gdp' })).toEqual(expect.arrayContaining(['does not follow from the other fields (valid)']));
    expect(await problems({ plannedEpsilon: right.plannedEpsilon / 2 }))
      .toContain('the planned ε is smaller than what the planned steps spend (plannedEpsilon)');
  });

  it('is noticed where it lacks, or has, a field', async () => {
    const { epsilon: _, ...rest } = made.certificate;
    expect(await verified(rest, made.ledger)).toMatchObject({
      holds: false, epsilonClaimed: null, problems: [{ what: 'not as the schema of certificates says', where: 'epsilon' }],
    });
    expect((await verified({ ...made.certificate, more: 1 }, made.ledger)).holds).toBe(false);
    expect((await verified('text', made.ledger)).holds).toBe(false);
  });
});

interface Edited {
  readonly path: string;
  readonly value: unknown;
}

/** The value with each of its leaves changed, and with each entry of its lists left out. */
function edited(value: unknown, path: readonly string[] = []): Edited[] {
  const at = path.join('.');
  if (Array.isArray(value)) {
    return value.flatMap((inner: unknown, i) => [
      { path: `${at}.${i} left out`, value: value.filter((_, j) => j !== i) as unknown },
      ...edited(inner, [...path, String(i)]).map((one) => ({ path: one.path, value: value.map((other: unknown, j) => (i === j ? one.value : other)) })),
    ]);
  }
  if (typeof value === 'object' && value !== null) {
    return Object.entries(value).flatMap(([key, inner]) =>
      edited(inner, [...path, key]).map((one) => ({ path: one.path, value: { ...value, [key]: one.value } })));
  }
  const others = typeof value === 'number' ? (Number.isInteger(value) ? [value + 1, value - 1] : [value * 1.02, value * 0.98])
    : typeof value === 'boolean' ? [!value]
    : typeof value === 'string' ? [/^[0-9a-f]{64}$/.test(value) ? value.replace(/./, (c) => (c === '0' ? '1' : '0')) : `${value}x`]
    : [1];
  return others.map((other) => ({ path: at, value: other }));
}
