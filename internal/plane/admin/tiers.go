package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// Tier is a tier, with what is on it.
type Tier struct {
	Tier string `json:"tier"`
	Rank int64  `json:"rank"`
	// Users and Keys are how many users are on the tier, and how many API keys have it as their own.
	Users int64 `json:"users"`
	Keys  int64 `json:"keys"`
	// Rules are the rules for the tier, and maybe for others.
	Rules   []string `json:"rules"`
	Comment *string  `json:"comment"`
}

// Tiers returns all tiers, in the order of their ranks.
func (d *Database) Tiers(ctx context.Context) ([]Tier, error) {
	return rows[Tier](ctx, d, `SELECT t.tier, t.rank, (SELECT count(*) FROM rate_limit_users u WHERE u.tier = t.tier), (SELECT count(*) FROM rate_limit_api_keys k WHERE k.tier = t.tier),
	ARRAY(SELECT r.name FROM rate_limit_rules r WHERE t.tier = ANY (r.tiers) ORDER BY r.name), t.comment
FROM rate_limit_tiers t ORDER BY t.rank, t.tier`)
}

// TierNames are the names of all tiers, in the order of their ranks.
func (d *Database) TierNames(ctx context.Context) ([]string, error) {
	return values[string](ctx, d, "SELECT tier FROM rate_limit_tiers ORDER BY rank, tier")
}

// RenameTier gives a tier another name, which its users, keys, overrides and rules then have.
func (d *Database) RenameTier(ctx context.Context, name, to string) error {
	return d.rename(ctx, "tier", "rate_limit_tiers", "tier", name, to, d.noTier)
}

// tierUsesSQL names what uses a tier, for people.
const tierUsesSQL = `SELECT n || ' ' || what || CASE n WHEN 1 THEN '' ELSE 's' END FROM (VALUES
	('user', (SELECT count(*) FROM rate_limit_users WHERE tier = $1::text)),
	('API key', (SELECT count(*) FROM rate_limit_api_keys WHERE tier = $1::text)),
	('override', (SELECT count(*) FROM rate_limit_overrides WHERE tier = $1::text))) AS u(what, n) WHERE n > 0
UNION ALL (SELECT format('the rule "%s"', name) FROM rate_limit_rules WHERE $1::text = ANY (tiers) ORDER BY name)`

// DeleteTier deletes a tier that nothing uses. The error names what uses it.
func (d *Database) DeleteTier(ctx context.Context, name string) error {
	if name == edge.DefaultTier {
		return fmt.Errorf("tier: %q: must stay: it is the tier of requests without a user", name)
	}
	return d.together(ctx, func(w *work) {
		// No user and no key can get the tier from here on.
		w.execute("SELECT FROM rate_limit_tiers WHERE tier = $1 FOR UPDATE", name)
		uses := some[string](w, tierUsesSQL, name)
		if len(uses) > 0 {
			w.fail(fmt.Errorf("tier: %q: is used by %s: change or delete these first, or see: caddy pg-ratelimit tiers rename", name, strings.Join(uses, ", ")))
		}
		if w.execute("DELETE FROM rate_limit_tiers WHERE tier = $1", name) == 0 && w.err == nil {
			w.fail(w.noTier(ctx, name))
		}
	})
}

// noTier is the error about a tier that is not in the database.
func (d *Database) noTier(ctx context.Context, name string) error {
	tiers, err := d.TierNames(ctx)
	if err != nil {
		return err
	}
	return notFound(fmt.Sprintf("tier: %q: must be %s", name, amongSome(name, tiers)))
}
