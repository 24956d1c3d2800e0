package caddymodule_test

import (
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// sendJourney sends requests. Package internal/testkit/journey counts the functions that run meanwhile.
func (c *live) sendJourney(headers ...string) {
	c.t.Helper()
	if testing.CoverMode() != "count" {
		c.t.Skip("internal/testkit/journey runs it")
	}
	for range 2000 {
		c.expect(http.StatusOK, "/", headers...)
	}
}

// The journey of a request that the database decides.
func TestJourneyOfExactRequest(t *testing.T) {
	c := start(t, `
		:PORT {
			pg_ratelimit PREFIX {
				dsn `+cluster.Open(t)+`
				limit 1000000 1h
				timeout 10s
			}
		}`)
	c.sendJourney()
}

// The journey of a request that a policy and the database decide.
func TestJourneyOfRequestWithPolicy(t *testing.T) {
	dsn := policytest.Open(t, policytest.People+
		`SELECT rate_limit_rule('all', tiers => '{anonymous,free,pro}', per_hour => 1000000,
			per_day => 2000000);`)
	c := start(t, `
		:PORT {
			pg_ratelimit {
				dsn `+dsn+`
				timeout 10s
				policy {
					user {header.X-User}
				}
			}
		}`)
	c.sendJourney("X-User", "ann")
}
