package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// policyRowsOf is SQL that fills the tables of a policy: so many users on three tiers, each user with an
// API key, and a rule for each tier. The API keys are what the loads send, see keyName; a
// policy takes keys that were made elsewhere. Triggers and checks of foreign keys are off
// for the many rows, since they would take most of the time.
func policyRowsOf(keys int) string {
	return fmt.Sprintf(`
	SET LOCAL session_replication_role = replica;
	INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro'), ('enterprise');
	INSERT INTO rate_limit_users (user_id, tier)
		SELECT 'user-' || n, (ARRAY['free', 'pro', 'enterprise'])[1 + n %% 3] FROM generate_series(0, %[1]d) AS n;
	INSERT INTO rate_limit_api_keys (digest, user_id)
		SELECT sha256(convert_to(concat_ws('.', 10, n >> 16, n >> 8 & 255, n & 255), 'UTF8')), 'user-' || n FROM generate_series(0, %[1]d - 1) AS n
		UNION ALL SELECT sha256('ready'), 'user-%[1]d';
	SET LOCAL session_replication_role = DEFAULT;
	SELECT rate_limit_rule(tier, family => 'plan', priority => 100 + place, tiers => ARRAY[tier], algorithm => 'sliding_window', per_hour => 1000000)
		FROM unnest(ARRAY['free', 'pro', 'enterprise']) WITH ORDINALITY AS t(tier, place);
	ANALYZE`, keys)
}

// withPolicy makes a database with a policy of a million API keys, in tables that schema makes, and returns its DSN.
func (d *database) withPolicy(ctx context.Context, schema string) (dsn string) {
	if d.policies[schema] == "" {
		log.Print("filling the tables of a policy")
		dsn = d.create(ctx)
		query(ctx, dsn, schema, policyRowsOf(million))
		d.policies[schema] = dsn
	}
	return d.policies[schema]
}

// schema is the SQL that makes the tables of a proxy.
func (b *bench) schema(s *proxySpec) string {
	if s.before {
		return string(must(os.ReadFile(filepath.Join(b.beforeDir, "schema.sql"))))
	}
	return schema.File
}

const (
	floodSeconds = 2    // for which each load is sent in a round
	floodUsers   = 1000 // requests of users a second
	floodKeys    = 5000 // invented keys a second, which leave some of two cores free
)

// measureFlood measures what invented API keys do to users with real ones. It compares the p99
// of users in each round: while nothing else is sent, while mistyped keys are sent, which need no
// database, and while as many invented keys are sent, which only the database can tell from others.
func (b *bench) measureFlood() {
	p := b.startProxy(&proxySpec{name: "Caddy with a policy", limit: withPolicy}, 0)
	defer b.stopProxies()
	users := newClient(p.address, load{draw: zipf, keys: tenZipf.keys, connections: 64, rate: floodUsers})
	defer users.close()
	others := newClient(p.address, load{connections: 256, rate: floodKeys})
	defer others.close()
	wrong := 0
	// beside returns the p99 of users while the keys are sent.
	beside := func(keys []string) float64 {
		var group sync.WaitGroup
		if len(keys) > 0 {
			var next atomic.Int64
			others.key = func(*connection) string { return keys[int(next.Add(1)-1)%len(keys)] }
			group.Go(func() { others.run(floodSeconds * time.Second) })
		}
		r := users.run(floodSeconds * time.Second)
		group.Wait()
		check(b.ctx.Err())
		wrong += r.unlike(http.StatusOK)
		return r.percentile(99)
	}
	beside(nil) // which looks the users up
	var alone, withMistyped, withInvented []float64
	for round := range b.rounds {
		invented, mistyped := make([]string, floodKeys*floodSeconds), make([]string, floodKeys*floodSeconds)
		for i := range invented {
			invented[i] = must(policy.NewKey())
			mistyped[i] = invented[i][:len(invented[i])-1] + "-" // which no checksum has
		}
		alone, withMistyped, withInvented = append(alone, beside(nil)), append(withMistyped, beside(mistyped)), append(withInvented, beside(invented))
		log.Printf("invented keys: round %d of %d: p99 of users %.2f ms", round+1, b.rounds, withInvented[round])
	}
	b.figure(nameFlood, "%d a second: p99 of users %s ms, × %s alone, × %s beside mistyped keys; %s statements looked up %s keys", floodKeys, estimateOf(withInvented).text(2),
		ratioOf(withInvented, alone).text(2), ratioOf(withInvented, withMistyped).text(2), number(b.metric(p, "caddy_pg_ratelimit_policy_lookups_total"), 0), number(float64(b.rounds*floodKeys*floodSeconds), 0))
	b.wrong(wrong, nameFlood)
}
