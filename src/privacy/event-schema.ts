import { z } from 'zod';
import { type EventOf, type PrivacyEvent, parseEvent } from './events.ts';

const positive = z.number().positive();
const whole = (least: number) => z.int().min(least);
const rate = positive.max(1);
const inner = z.lazy((): z.ZodType<PrivacyEvent> => eventSchema);

const runs = z.discriminatedUnion('distribution', [
  z.strictObject({
    distribution: z.literal('truncated-negative-binomial').describe('P(K = k) ∝ (1 − γ)^k·Γ(k + η)/k! for k ≥ 1'),
    shape: z.number().gt(-1).describe('η'),
    gamma: positive.lt(1).describe('γ'),
  }),
  z.strictObject({
    distribution: z.literal('poisson').describe('K may be 0, and then nothing is released'),
    mean: z.number().min(1),
  }),
]).describe('How the number of runs K is drawn');

/** The fields of each kind of event, for those who read a certificate without ghostgrad. */
const kinds: { readonly [K in PrivacyEvent['kind']]: z.ZodType<EventOf<K>> } = {
  'gaussian': z.strictObject({
    kind: z.literal('gaussian').describe('A value of L2 sensitivity 1 plus N(0, sigma²) on each coordinate'),
    sigma: positive.describe('Noise standard deviation over sensitivity'),
  }),
  'gaussian-with-counts': z.strictObject({
    kind: z.literal('gaussian-with-counts').describe(
      'On one draw, a value of L2 sensitivity 1 plus N(0, sigma²) on each coordinate, and `counts` numbers that one record moves by ½ '
      + 'each, plus N(0, countSigma²) each: together a gaussian with (sigma⁻² + counts/(4·countSigma²))^(−½)',
    ),
    sigma: positive,
    counts: whole(1),
    countSigma: positive,
  }),
  'laplace': z.strictObject({
    kind: z.literal('laplace').describe('A number of sensitivity 1 plus noise of density exp(−|x|/scale)/(2·scale)'),
    scale: positive,
  }),
  'poisson-sampled': z.strictObject({
    kind: z.literal('poisson-sampled').describe('`event` on a sample that takes each record independently with probability `rate`'),
    rate,
    event: inner,
  }),
  'truncated-poisson-sampled': z.strictObject({
    kind: z.literal('truncated-poisson-sampled').describe(
      '`event` on a Poisson sample of `datasetSize` records or one more, cut to `most` records chosen at random where it has more',
    ),
    rate,
    most: whole(1),
    datasetSize: whole(1),
    event: inner,
  }),
  'sampled-without-replacement': z.strictObject({
    kind: z.literal('sampled-without-replacement').describe(
      '`event` on `sampleSize` of `datasetSize` records, all subsets equally likely; neighbours replace a record, and `event` tells its '
      + 'noise in units of what a replacement in the sample changes',
    ),
    sampleSize: whole(1),
    datasetSize: whole(1),
    event: inner,
  }),
  'self-composed': z.strictObject({
    kind: z.literal('self-composed').describe('`event` repeated `count` times, each possibly chosen in view of earlier results'),
    event: inner,
    count: whole(0),
  }),
  'composed': z.strictObject({
    kind: z.literal('composed').describe('All of `events`, each possibly chosen in view of earlier results; none: nothing was released'),
    events: z.array(inner),
  }),
  'repeat-and-select': z.strictObject({
    kind: z.literal('repeat-and-select').describe('`event` run a random, secret number of times, of which only the best result is released'),
    event: inner,
    runs,
  }),
};

/** A privacy event as certificates and ledgers hold it. */
export const eventSchema: z.ZodType<PrivacyEvent> = z
  .union(Object.values(kinds))
  .superRefine((value, context) => {
    try {
      parseEvent(value);
    } catch (error) {
      context.addIssue({ code: 'custom', message: error instanceof Error ? error.message : String(error) });
    }
  })
  .meta({ id: 'event', description: 'What was released, as far as privacy is concerned. Noise is told in units of sensitivity.' });
