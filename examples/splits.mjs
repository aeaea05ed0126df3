// The fixed splits of splits.json. A row of a set that comes in one piece goes by a tenth that its number is hashed to, so
// that a split is the same everywhere and needs no list of rows.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';

export const splits = JSON.parse(readFileSync(new URL('splits.json', import.meta.url), 'utf8'));

/** 0 to 9, for row `row` (from 0, header not counted) of a set. */
export const tenthOf = (set, row) => createHash('sha256').update(`${set} ${row}`).digest().readUInt32BE(0) % 10;

/** Row numbers of each part of a set that comes in one piece; `train` holds all but the other two. */
export function partsOf(set) {
  const { rows, tenths: { test, validation } } = splits[set];
  const parts = { train: [], validation: [], test: [] };
  for (let row = 0; row < rows; row++) {
    const tenth = tenthOf(set, row);
    parts[test.includes(tenth) ? 'test' : validation.includes(tenth) ? 'validation' : 'train'].push(row);
  }
  return parts;
}
