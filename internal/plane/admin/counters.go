package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Usage is how much of a limit is used.
type Usage struct {
	// Prefix is that of the counter. Rule and Limit are "" for a limit of a configuration.
	Prefix    string `json:"prefix"`
	Rule      string `json:"rule"`
	Limit     string `json:"limit"`
	Key       string `json:"key"`
	Algorithm string `json:"algorithm"`
	Used      int64  `json:"used"`
	// Quota and Percent are nil for unlimited.
	Quota   *int64   `json:"quota"`
	Percent *float64 `json:"percent"`
	// Resets is the end of the window, when the oldest request leaves (sliding_log), or when all is back
	// (token_bucket, gcra). It is nil if nothing is used.
	Resets *time.Time `json:"resets"`
}

// rulePrefix begins the prefixes of the counters of rules.
const rulePrefix = "rule/"

// countersSQL are the counters of a prefix $1 in both tables, as the algorithms keep them. A column that an algorithm does not
// use is NULL.
const countersSQL = `SELECT $1::text AS prefix, c.key, t.durable, c.count, c.prev_count, c.window_start, c.tokens, c.last_refill,
	cardinality(c.hits) AS hits, c.expires_at, NULL AS usage
FROM (VALUES (true), (false)) AS t(durable) CROSS JOIN LATERAL rate_limit_counters($1::text, t.durable, $2::text[]) AS c `

const usageColumns = `'rule/' || u.rule || '/' || u.limit_name, u.rule, u.limit_name, u.key, u.algorithm, u.used, u.quota, u.percent::float8, u.resets_at`

var errNoKey = &ratelimit.FieldError{Field: "key", Want: "the key of a counter"}

// errNoCounter does not name the key, which may be a secret.
const errNoCounter = notFound("there is no counter of this prefix and key, so its full quota is left")

// storedKeys are the texts that the tables may have for a key: the key itself, as lists show
// it, or its digest.
func storedKeys(key string) []string {
	keys := []string{(&ratelimit.Hit{Key: key}).StoredKey(), ratelimit.DigestKey(key)}
	if utf8.ValidString(key) && strings.IndexByte(key, 0) < 0 {
		keys = append(keys, key)
	}
	if len(key) > 2 && key[0] >= '1' && key[0] <= '9' && key[1] == '|' { // an alternative that is a secret
		keys = append(keys, key[:2]+ratelimit.DigestKey(key[2:]))
	}
	return keys
}

// Counters returns the counters of a prefix and a key: one, or one of each table, with a *Usage in the column usage, which is
// NULL for a counter that is not of a rule, and of a rule that is gone: the quota is then not in the database. The key may be
// one that is stored as a digest.
func (d *Database) Counters(ctx context.Context, prefix, key string) ([]Row, error) {
	if key == "" {
		return nil, errNoKey
	}
	w := d.work(ctx)
	keys := storedKeys(key)
	all := w.ask(countersSQL, prefix, keys)
	if len(all) == 0 {
		w.fail(errNoCounter)
	}
	var used []Usage
	name, isRule := strings.CutPrefix(prefix, rulePrefix)
	if rule, limit, isLimit := strings.Cut(name, "/"); isRule && isLimit && d.policy == "" {
		used = list[Usage](w, "SELECT "+usageColumns+` FROM rate_limit_used u
WHERE u.rule = $1 AND u.limit_name = $2 AND u.key = ANY ($3::text[])`, rule, limit, keys)
	}
	for i := range all {
		for j := range used {
			if used[j].Key == all[i].Text("key") {
				all[i].Set("usage", &used[j])
			}
		}
	}
	return all, w.err
}

// idle is whether no request that runs holds a slot of a row of a table of counts.
func (t *counterTable) idle() string {
	return "(slots IS NULL OR NOT " + strings.ReplaceAll(algorithm.LiveSQL, "{processes}", t.processes) + ")"
}

// errRun says why slots cannot be reset, and what frees them.
func errRun(t *counterTable, processes string) error {
	return fmt.Errorf("the counter is of a limit in_flight: requests that run hold its slots, and a reset would let more run than the limit. A slot is free when its request ends, and those of "+
		"a lost process 10 seconds later. To free them at once, end its session: UPDATE %s SET seen = '-infinity' WHERE process IN (%s)", t.processes, processes)
}

// Reset deletes the counters of a prefix and a key, so that the full quota is back. It refuses to delete one of which
// requests that run hold slots.
func (d *Database) Reset(ctx context.Context, prefix, key string) error {
	if key == "" {
		return errNoKey
	}
	tables, err := d.counterTables(ctx)
	if err != nil {
		return err
	}
	return d.together(ctx, func(w *work) {
		deleted := int64(0)
		for _, t := range tables {
			const own = " WHERE prefix = $1 AND key = ANY ($2::text[])"
			deleted += w.execute("DELETE FROM "+t.name+own+" AND "+t.idle(), prefix, storedKeys(key))
			for _, holders := range some[string](w, "SELECT coalesce((SELECT string_agg(DISTINCT (s >> 32)::text, ', ') FROM unnest(slots) s WHERE s > 0), '') FROM "+
				t.name+own+" AND NOT "+t.idle(), prefix, storedKeys(key)) {
				w.fail(errRun(&t, holders))
			}
		}
		if deleted == 0 {
			w.fail(errNoCounter)
		}
	})
}

// Top returns the counters of rules that are closest to their limits, the closest first, at
// most so many. Their prefixes begin with a text.
func (d *Database) Top(ctx context.Context, prefix string, most int) ([]Usage, error) {
	if d.policy != "" {
		return nil, errors.New("--prefix: missing: must be a prefix that is not of a rule: the policy is on another server than the counters, so that the use of its limits is not known here")
	}
	return rows[Usage](ctx, d, "SELECT "+usageColumns+` FROM rate_limit_used u
WHERE u.used > 0 AND u.quota IS NOT NULL AND starts_with('rule/' || u.rule || '/' || u.limit_name, $1::text)
ORDER BY u.percent DESC, u.used DESC, u.rule, u.limit_name, u.key LIMIT $2::bigint`, prefix, int64(most))
}

// TopCounters returns the counters of a prefix that is not of a rule, those that have counted
// most first, as Counters has them. Their quotas are in the configurations of proxies.
func (d *Database) TopCounters(ctx context.Context, prefix string, most int) ([]Row, error) {
	return d.Ask(ctx, countersSQL+`WHERE c.expires_at > now()
ORDER BY coalesce(c.count, cardinality(c.hits), c.slots) DESC NULLS LAST, c.tokens, c.last_refill DESC, c.key LIMIT $3::bigint`, prefix, nil, int64(most))
}

// userUsage returns the counters that count by user, and those of one of its keys.
func (d *Database) userUsage(ctx context.Context, user string) ([]Usage, error) {
	if d.counters != "" {
		return []Usage{}, nil
	}
	// The view looks at the counters of these keys only. A key may begin with the number of an alternative.
	return rows[Usage](ctx, d, `WITH own(dimension, part) AS (
	SELECT 'user', rate_limit_counter_key($1) UNION ALL SELECT 'key', coalesce(k.counted_as, k.id)::text FROM rate_limit_api_keys k WHERE k.user_id = $1
)
SELECT `+usageColumns+` FROM rate_limit_used u JOIN rate_limit_rules r ON r.name = u.rule
	JOIN LATERAL rate_limit_counted(r.count_by, u.key) d ON true JOIN own o ON (o.dimension, o.part) = (d.dimension, d.part)
WHERE u.key = ANY (rate_limit_key_forms(ARRAY(SELECT part FROM own))) ORDER BY u.rule, u.limit_name, u.key`, user)
}
