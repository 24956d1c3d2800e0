package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

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

const (
	floodSeconds = 4    // for which each load is sent in a round
	floodUsers   = 1000 // requests of users a second
	floodKeys    = 5000 // invented keys a second, which leave some of two cores free
)

// measureFlood measures what invented API keys do to users with real ones. It compares the p99
// of users in each round: while nothing else is sent, while mistyped keys are sent, which need no
// database, and while as many invented keys are sent, which only the database can tell from others.
func (b *bench) measureFlood() {
	if !b.wants(nameFlood) {
		return
	}
	p := b.startProxy(policyCaddy)
	users := pacedLoad{
		url: "http://" + p.address + "/", rate: floodUsers, duration: floodSeconds * time.Second, connections: someZipf.connections,
		key: func() string { return keyName(rand.IntN(someZipf.keys)) }, status: http.StatusOK,
	}
	wrong := 0
	// beside returns the p99 of users while the keys are sent.
	beside := func(keys []string) float64 {
		var group sync.WaitGroup
		failed := 0
		if len(keys) > 0 {
			var next atomic.Int64
			flood := users
			flood.rate, flood.connections, flood.status = floodKeys, 256, http.StatusUnauthorized
			flood.key = func() string { return keys[int(next.Add(1)-1)%len(keys)] }
			group.Go(func() { _, failed = flood.run(context.WithoutCancel(b.ctx)) }) // only this goroutine may fail
		}
		p99, failedUsers := users.run(b.ctx)
		group.Wait()
		wrong += failed + failedUsers
		return p99
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
		log.Printf("round %d of %d: invented keys: p99 of users %.2f ms", round+1, b.rounds, withInvented[round])
	}
	lookUps := b.metric(p, "caddy_pg_ratelimit_policy_lookups_total")
	b.figure(nameFlood, "%d a second: p99 of users %s ms, × %s alone, × %s beside mistyped keys; %s statements looked up %s keys", floodKeys, spreadOf(withInvented).text(2),
		pairs(withInvented, alone, quotient).text(2), pairs(withInvented, withMistyped, quotient).text(2), number(lookUps, 0), number(float64(b.rounds*floodKeys*floodSeconds), 0))
	b.wrong(wrong, nameFlood)
}
