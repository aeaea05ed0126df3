import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { epsilonOf } from './accountant.ts';
import { composed, selfComposed } from './events.ts';
import { flatGroup } from './groups.ts';
import { createLedger, digestOf, openLedger, verifyLedger } from './ledger.ts';
import { privacyPlan } from './plan.ts';
import { clippedSum, privatise } from './sum.ts';

const plan = privacyPlan({
  datasetSize: 1000,
  batchSize: 10,
  steps: 10,
  noiseMultiplier: 1,
  delta: 1e-5,
  groups: flatGroup(['b', 'w'], 1, 3),
  seed: 1,
});
const ratchet = plan.startRatchet();
const step = (w = 0) =>
  privatise(
    clippedSum(
      new Map([
        ['w', Float32Array.of(w, 0)],
        ['b', new Float32Array(1)],
      ]),
      plan.groups,
      0,
    ),
    plan,
    ratchet.advance(),
  );

let folder: string;
let path: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'ghostgrad-ledger-'));
  path = join(folder, 'ledger.jsonl');
});
afterEach(() => rm(folder, { recursive: true }));

async function written(steps: number): Promise<string> {
  const ledger = await createLedger(path);
  for (let t = 0; t < steps; t++) await ledger.charge(t, plan.event, digestOf(step()));
  await ledger.close();
  return ledger.head;
}

describe('ledger', () => {
  it('recomputes what was spent from its lines', async () => {
    const head = await written(5);
    const reading = await verifyLedger(path);
    expect(reading).toMatchObject({ head, torn: false, problems: [], event: composed([selfComposed(plan.event, 5)]) });
    expect(epsilonOf(reading.event, plan.accountedDelta).epsilon / plan.spent(5)).toBeCloseTo(1, 3);
    expect(reading.lines.map((line) => line.step)).toEqual([0, 1, 2, 3, 4]);
  });

  it('has a line on disk as soon as its step is charged', async () => {
    const ledger = await createLedger(path);
    expect(ledger.head).toBe('0'.repeat(64));
    await ledger.charge(0, plan.event, digestOf(step()));
    expect((await verifyLedger(path)).lines).toHaveLength(1);
    expect([ledger.length, ledger.head]).toEqual([1, (await verifyLedger(path)).head]);
    await ledger.close();
  });

  it('notices a changed, removed, inserted or reordered line', async () => {
    await written(4);
    const lines = (await readFile(path, 'utf8')).trimEnd().split('\n');
    const [a, b, c, d] = lines as [string, string, string, string];
    const tampered: readonly [string, readonly string[]][] = [
      ['line 2', [a, b.replace('"sigma":1', '"sigma":9'), c, d]],
      ['line 2', [a, b.replace('"step":1', '"step":7'), c, d]],
      ['line 2', [a, c, d]],
      ['line 1', [b, c, d]],
      ['line 3', [a, b, b, c, d]],
      ['line 2', [a, c, b, d]],
      ['line 2: is not a ledger line', [a, 'nonsense', c, d]],
      ['line 2: is not a ledger line', [a, b.replace('gaussian', 'laplace'), c, d]],
    ];
    for (const [problem, text] of tampered) {
      await writeFile(path, `${text.join('\n')}\n`);
      expect((await verifyLedger(path)).problems).toEqual([expect.stringContaining(problem)]);
      await expect(openLedger(path)).rejects.toThrow('the ledger does not hold');
    }
  });

  it('continues after a crash, dropping the line that was cut off and no other', async () => {
    await written(3);
    const whole = await readFile(path, 'utf8');
    for (const cut of [1, 40, whole.length - whole.lastIndexOf('\n', whole.length - 2) - 2]) {
      await writeFile(path, whole.slice(0, -cut));
      expect(await verifyLedger(path)).toMatchObject({ torn: true, problems: [], lines: { length: 2 } });
      const ledger = await openLedger(path);
      expect(ledger.length).toBe(2);
      await ledger.charge(2, plan.event, digestOf(step()));
      await ledger.close();
      expect(await verifyLedger(path)).toMatchObject({ torn: false, problems: [], lines: { length: 3 } });
    }
    const ledger = await openLedger(path);
    await ledger.charge(2, plan.event, digestOf(step()));
    await ledger.close();
    // A step charged twice counts twice.
    expect((await verifyLedger(path)).event).toEqual(composed([selfComposed(plan.event, 4)]));
  });

  it('refuses to overwrite, to start on nothing, and to follow a failed line', async () => {
    await written(1);
    await expect(createLedger(path)).rejects.toThrow(GhostgradError);
    await expect(openLedger(join(folder, 'absent'))).rejects.toThrow('the ledger cannot be read');
    const ledger = await openLedger(path);
    await ledger.close();
    await expect(ledger.charge(1, plan.event, 'x')).rejects.toThrow('step 1 could not be charged');
    await expect(ledger.charge(1, plan.event, 'x')).rejects.toThrow('left incomplete');
    expect((await verifyLedger(path)).lines).toHaveLength(1);
  });

  it('digests every value and name', () => {
    const digests = [step(), step(), step(1)].map(digestOf);
    expect(new Set(digests).size).toBe(3);
    expect(digests[0]).toMatch(/^[0-9a-f]{64}$/);
    const same = step();
    expect(digestOf(same)).toBe(digestOf(same));
    expect(() => digestOf({ ...same })).toThrow('not privatised');
  });
});
