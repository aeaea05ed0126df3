/**
 * One discrete Gaussian on the integers as an alias table (Walker 1977, Vose 1991), and how far it is from the true one.
 * All is computed in whole numbers with errors that are added up on the way, so the distance is a proven bound
 * (docs/noise.md).
 */
export interface DiscreteTable {
  /** By column, the upper {@link comparedBits} bits of its share that is its own, then the column that owns the rest. */
  readonly entries: Int32Array;
  /** By column, the lower {@link lowerWords} words of that share, the upper ones first. */
  readonly lower: Uint32Array;
  /** At least the statistical distance between a draw and D_Z(√{@link variance}). */
  readonly distance: number;
}

/** A column's index and the upper bits of what is compared with its share come from one 32-bit word. */
export const columnBits = 12;
const columns = 1 << columnBits;
/** Column c stands for the integer c − centre. */
export const centre = columns / 2;
/** Bits of a word that are compared with a column's share. The lower ones are read where these are equal. */
export const comparedBits = 32 - columnBits;
export const lowerWords = 8;
const shareBits = BigInt(comparedBits + 32 * lowerWords);
/**
 * v: the parameter σ² of the table's D_Z(σ), mass ∝ exp(−x²/2σ²). The tails beyond 2048 = 18.9·σ hold less than 2^-262; what
 * else it must be is told at `gain` in discrete-gaussian.ts.
 */
export const variance = 11712;

/** Probabilities are computed in units of 2^-precision. */
const precision = 384n;
const one = 1n << precision;

/** A number from `low` to `low + error`, in units of 2^-precision; rounded down at each step. */
interface Enclosed {
  readonly low: bigint;
  readonly error: bigint;
}

/** Of two numbers in [0, 1]: (a + e)(b + f) ≤ ab + e + f + 1 for what rounding down takes. */
const product = (a: Enclosed, b: Enclosed): Enclosed =>
  ({ low: (a.low * b.low) >> precision, error: a.error + b.error + 1n });

/** exp(−1/(2v)) by its alternating series, whose terms fall: the last one bounds what is cut off. */
function step(): Enclosed {
  let [sum, term, terms] = [one, one, 0n];
  for (let n = 1n; term > 0n; n++, terms++) {
    term /= 2n * BigInt(variance) * n;
    sum += n % 2n === 0n ? term : -term;
  }
  // Each term is too small by at most 2 units (its own rounding and its predecessor's), and so is what was cut off.
  const slack = 2n * (terms + 1n);
  return { low: sum - slack, error: 2n * slack };
}

/** exp(−x²/(2v)) for x = 0 … centre, and a bound on the sum of all beyond, on one side; by q^(x+1)² = q^x²·q^(2x+1). */
function weights(): { readonly masses: readonly Enclosed[]; readonly tail: bigint } {
  const q = step();
  const squared = product(q, q);
  const masses: Enclosed[] = [{ low: one, error: 0n }];
  let ratio = q;
  for (let x = 0; x < centre; x++) {
    masses.push(product(masses[x]!, ratio));
    ratio = product(ratio, squared);
  }
  const first = masses.pop()!;
  // From here on each is at most `ratio` of the one before: a geometric series.
  const most = ratio.low + ratio.error;
  return { masses, tail: ((first.low + first.error) * one) / (one - most) + 1n };
}

const absolute = (x: bigint): bigint => (x < 0n ? -x : x);

/** a/b for large whole numbers, rounded up. */
const quotientAbove = (a: bigint, b: bigint): number => (Number((a << 1000n) / b + 1n) * (1 + 2 ** -52)) * 2 ** -1000;

let made: DiscreteTable | undefined;

/** The table, made at the first call, in some milliseconds. */
export const discreteTable = (): DiscreteTable => (made ??= makeTable());

function makeTable(): DiscreteTable {
  const { masses, tail } = weights();
  const both = (f: (mass: Enclosed) => bigint): bigint =>
    masses.reduce((sum, mass, x) => sum + (x === 0 ? 1n : 2n) * f(mass), 0n);
  const total = both(({ low }) => low);
  const whole = BigInt(columns) << shareBits;
  const shares = masses.map(({ low }) => (low * whole) / total);
  // What rounding down left over goes to 0, so that the shares fill the table.
  const given = shares.reduce((sum, share, x) => sum + (x === 0 ? 1n : 2n) * share, 0n);
  shares[0]! += whole - given;

  // Σ|p̃ − p| ≤ Σ|share/whole − low/total| + Σ|low/total − p|. Missing mass m of A = total + m in all makes the latter at most
  // 2m/A ≤ 2m/total.
  const rounded = masses.reduce((sum, { low }, x) => sum + (x === 0 ? 1n : 2n) * absolute(shares[x]! * total - low * whole), 0n);
  const missing = both(({ error }) => error) + 2n * tail;
  const distance = (quotientAbove(rounded, whole * total) / 2 + quotientAbove(missing, total)) * (1 + 2 ** -50);
  const byColumn = Array.from({ length: columns }, (_, column) => shares[Math.abs(column - centre)] ?? 0n);
  return { ...aliased(byColumn), distance };
}

/** Columns of equal height, each shared by two values at most, in exact arithmetic. */
function aliased(shares: readonly bigint[]): Pick<DiscreteTable, 'entries' | 'lower'> {
  const height = 1n << shareBits;
  const left = [...shares];
  // A column that is all its own has itself for the rest, too.
  const owns = left.map(() => 0n);
  const others = left.map((_, column) => column);
  const low = left.flatMap((share, column) => (share < height ? [column] : []));
  const high = left.flatMap((share, column) => (share < height ? [] : [column]));
  while (low.length > 0) {
    const [column, giver] = [low.pop()!, high.at(-1)!];
    owns[column] = left[column]!;
    others[column] = giver;
    left[giver]! -= height - left[column]!;
    if (left[giver]! < height) low.push(high.pop()!);
  }
  const entries = Int32Array.from(owns, (share, column) =>
    (Number(share >> BigInt(32 * lowerWords)) << columnBits) | others[column]!);
  const lower = Uint32Array.from({ length: columns * lowerWords }, (_, at) =>
    Number(BigInt.asUintN(32, owns[Math.floor(at / lowerWords)]! >> BigInt(32 * (lowerWords - 1 - at % lowerWords)))));
  return { entries, lower };
}
