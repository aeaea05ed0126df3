import { type PrivacyEvent } from './events.ts';
import { gaussianMu, notPureGaussian } from './exact-gaussian.ts';
import { refusal } from './refusal.ts';

/**
 * μ of the Gaussian mechanism that many steps approach by a central limit theorem (Bu, Dong, Long & Su 2020):
 * μ² = Σ q²·(e^{1/σ²} − 1). For any finite number of steps that claims less ε than is spent, hence it is here for comparison
 * with other tools, and guarantees nothing. Where nothing is sampled, μ² = Σ σ⁻² is exact.
 * Throws GhostgradError for other than Gaussian noise on all of the data or on Poisson samples, and compositions.
 */
export const centralLimitMu = (event: PrivacyEvent): number => Math.sqrt(square(event));

function square(event: PrivacyEvent): number {
  switch (event.kind) {
    case 'gaussian':
    case 'gaussian-with-counts':
      return gaussianMu(event) ** 2;
    case 'self-composed':
      return event.count * square(event.event);
    case 'composed':
      return event.events.reduce((sum, e) => sum + square(e), 0);
    case 'poisson-sampled':
      if (event.rate === 1) return square(event.event);
      if (notPureGaussian(event.event) === undefined) return event.rate ** 2 * Math.expm1(gaussianMu(event.event) ** 2);
      throw refusal('gdp', event, expected);
    default:
      throw refusal('gdp', event, expected);
  }
}

const expected = 'Gaussian noise, Poisson-sampled or on all of the data, and compositions of these';
