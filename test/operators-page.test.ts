import { expect, it } from 'vitest';
import { operatorsPage } from './support/operators-page.ts';

it('docs/operators.md says what the operator table does', async () => {
  await expect(operatorsPage()).toMatchFileSnapshot('../docs/operators.md');
});
