package admin_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// either are rules, and a zone, that count by alternatives.
var either = `
	SELECT rate_limit_rule('either', count_by => '{user|ip}', algorithm => 'fixed_window', per_hour => 10);
	SELECT rate_limit_rule('each_key', count_by => '{key|ip,host}', per_hour => 10);
	INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('either', 'per_hour', 'acme', 50);
	DELETE FROM rate_limit_ephemeral; DELETE FROM rate_limit_durable;
	INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at) SELECT p, k, 5, now(), now() + interval '1 h' FROM (VALUES
		('rule/either/per_hour', '1|acme'), ('rule/either/per_hour', '1|192.0.2.1'), ('rule/either/per_hour', '2|192.0.2.1'), ('rule/either/per_hour', '1|blue'),
		('rule/each_key/per_hour', '1|1 a.example'), ('rule/each_key/per_hour', '1|2 a.example'), ('rule/each_key/per_hour', '2|192.0.2.1 a.example'),
		('zone', '1|sha256:' || encode(sha256('key of acme'), 'hex')), ('zone', '2|192.0.2.1'), ('zone', '2|192.0.2.9')) AS v(p, k)`

// A user, an address and a key are forgotten in counters of alternatives, and nobody else.
func TestForgetAlternatives(t *testing.T) {
	f := newForgets(t)
	cluster.Execute(t, f.dsn, either)
	f.forget(&admin.Person{User: "1"}, false, "audit 2, audit_20260102 2, bans 1", "")
	f.forget(&admin.Person{User: "acme"}, false, "audit 3, audit_20260102 3, usage 2, usage_hours 1, overrides 3, bans 2, ephemeral 3",
		"rule/each_key/per_hour 1|1 a.example, rule/either/per_hour 1|acme, zone "+("1|" + ratelimit.DigestKey("key of acme"))[:30])
	f.forget(&admin.Person{Address: netip.MustParseAddr("192.0.2.1")}, false, "bans 1, ephemeral 4",
		"rule/each_key/per_hour 2|192.0.2.1 a.example, rule/either/per_hour 1|192.0.2.1, rule/either/per_hour 2|192.0.2.1, zone 2|192.0.2.1")
}

// What a user has used of a rule with alternatives is shown with the amount of its override, and a key is found by what
// it is.
func TestCountersOfAlternativesAreShown(t *testing.T) {
	f := newForgets(t)
	cluster.Execute(t, f.dsn, either)
	u, err := f.db.User(context.Background(), "acme")
	if err != nil || len(u.Usage) != 1 || u.Usage[0].Key != "1|acme" || fmt.Sprint(*u.Usage[0].Quota) != "50" {
		t.Errorf("%+v, %v", u.Usage, err)
	}
	found, err := f.db.Counters(context.Background(), "zone", "1|key of acme")
	if err != nil || len(found) != 1 {
		t.Errorf("%+v, %v", found, err)
	}
	all, err := f.db.Ask(context.Background(), admin.UsersQuestion(admin.ByName), "", 10)
	if err != nil || len(all) != 3 || all[1].Text("user") != "acme" || all[1].Get("resets") == nil || all[2].Get("resets") == nil || all[0].Get("resets") != nil {
		t.Errorf("%+v, %v", all, err)
	}
}
