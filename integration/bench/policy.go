package main

import (
	"fmt"
	"math"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/policy"
)

// policyKeys is how many API keys a database with a policy has.
const policyKeys = 1000000

// policyRowsOf is SQL that fills the tables of a policy: so many users on three tiers, each user with an
// API key, and a rule for each tier. The API keys are what the loads send, see keyName; a
// policy takes keys that were made elsewhere. Triggers and checks of foreign keys are off,
// since they would take most of the time.
func policyRowsOf(keys int) string {
	return fmt.Sprintf(`
	SET LOCAL session_replication_role = replica;
	INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro'), ('enterprise');
	INSERT INTO rate_limit_users (user_id, tier)
		SELECT 'user-' || n, (ARRAY['free', 'pro', 'enterprise'])[1 + n %% 3] FROM generate_series(0, %[1]d) AS n;
	INSERT INTO rate_limit_api_keys (digest, user_id)
		SELECT sha256(convert_to(concat_ws('.', 10, n >> 16, n >> 8 & 255, n & 255), 'UTF8')), 'user-' || n FROM generate_series(0, %[1]d - 1) AS n
		UNION ALL SELECT sha256('ready'), 'user-%[1]d';
	SELECT rate_limit_rule(tier, family => 'plan', priority => 100 + place, tiers => ARRAY[tier], algorithm => 'sliding_window', per_hour => 1000000)
		FROM unnest(ARRAY['free', 'pro', 'enterprise']) WITH ORDINALITY AS t(tier, place);
	ANALYZE`, keys)
}

// inventedKeys are API keys that nobody has, with valid checksums.
func inventedKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = must(policy.NewKey())
	}
	return keys
}

// policyTargets are those of measureIdentities and measureFlood.
func (b *bench) policyTargets() []target {
	memory := target{"memory of one proxy process for 800,000 more API keys than it remembers", "no growth", "–", "not measured"}
	if m := b.identities; m != nil {
		memory.measured = fmt.Sprintf("%+.1f MB live, %+.1f MB resident (%d MB before), %d remembered", float64(m.live)/(1<<20), float64(m.after-m.before)/(1<<20), m.before>>20, m.remembered)
		memory.outcome = judge(float64(m.live), 8*policyKeys, true) // less than a pointer for each key is noise
	}
	all := []target{memory}
	floods := b.flood
	if floods == nil {
		floods = &floodResult{&flood{}, &flood{}}
	}
	ratio := func(a, b float64) float64 { return a / b }
	for _, of := range []struct {
		what string
		*flood
	}{{"5,000 invented API keys a second through Caddy", floods.caddy}, {"50,000 invented API keys a second without a proxy", floods.core}} {
		alone, mistyped, statements, rate := pairs(of.invented, of.alone, ratio), pairs(of.invented, of.mistyped, ratio), spreadOf(of.statements), spreadOf(of.rate)
		times := func(without []float64) string {
			if len(without) == 0 {
				return ""
			}
			return fmt.Sprintf("; %s with them, %s without", spreadOf(of.invented).only(milliseconds), spreadOf(without).only(milliseconds))
		}
		all = append(all,
			target{of.what + ": p99 of users ÷ p99 alone", "at most 1.2", alone.text(places(2)) + times(of.alone), judge(alone.median, 1.2, true)},
			target{of.what + ": p99 of users ÷ p99 beside as many mistyped keys", "at most 1.2", mistyped.text(places(2)) + times(of.mistyped), judge(mistyped.median, 1.2, true)},
			target{of.what + ": statements that look them up", "at most 200/s", statements.text(places(0)) + answered(rate), judge(statements.median, 200, true)},
		)
	}
	return all
}

func answered(rate spread) string {
	if math.IsNaN(rate.median) {
		return ""
	}
	return fmt.Sprintf("/s for %s keys/s", rate.only(thousands))
}
