package caddymodule_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestALimitBesideAPolicy: handlers use the same memory for their requests, one after the other.
// What the policy said about a request has no effect on the next one.
func TestALimitBesideAPolicy(t *testing.T) {
	dsn := withPolicy(t, "SELECT rate_limit_rule('each', count_by => '{ip}', per_hour => 1000); SELECT rate_limit_rule('closed', action => 'block', paths => '{/policy/closed}');")
	l := start(t, strings.NewReplacer("DSN", dsn).Replace(`
	:PORT {
		handle /policy/* {
			pg_ratelimit {
				dsn DSN
				timeout 10s
				on_error deny
				policy
			}
			respond ok
		}
		handle {
			pg_ratelimit plain {
				dsn DSN
				timeout 10s
				on_error deny
				limit 100 1h
			}
			respond ok
		}
	}`))
	for i := 0; i < 20; i++ {
		for path, want := range map[string]int{"/policy/x": http.StatusOK, "/policy/closed": http.StatusForbidden, "/plain": http.StatusOK} {
			l.expect(want, path)
		}
	}
}
