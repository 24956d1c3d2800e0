package admin_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var longKey = strings.Repeat("session ", 100)

// persons are acme with the API key 1, blue with the key 2, and a user whose name is 1, like that of a
// key. The rule plan was renamed.
var persons = `
	INSERT INTO rate_limit_tiers (tier) VALUES ('free');
	INSERT INTO rate_limit_users (user_id, tier) VALUES ('acme', 'free'), ('blue', 'free'), ('1', 'free');
	INSERT INTO rate_limit_api_keys (id, digest, user_id) VALUES (1, sha256('key of acme'), 'acme'), (2, sha256('key of blue'), 'blue');
	SELECT rate_limit_rule('basic', per_hour => 10); UPDATE rate_limit_rules SET name = 'plan' WHERE name = 'basic';
	SELECT rate_limit_rule('by_key', count_by => '{host,key}', per_hour => 10);
	SELECT rate_limit_rule('by_ip', count_by => '{ip,user}', durable => true, per_hour => 10);
	INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('plan', 'per_hour', 'acme', 5), ('plan', 'per_hour', 'blue', 5);
	INSERT INTO rate_limit_overrides (rule, limit_name, key_id, events) VALUES ('plan', 'per_hour', 1, 5);
	INSERT INTO rate_limit_bans (user_id) VALUES ('acme'), ('1'); INSERT INTO rate_limit_bans (key_id) VALUES (1), (2);
	INSERT INTO rate_limit_bans (network) VALUES ('192.0.2.1'), ('192.0.2.0/24'), ('2001:db8:0:1::/64');
	INSERT INTO rate_limit_ephemeral (prefix, key, count, expires_at) SELECT p, k, 1, now() + interval '1 h' FROM (VALUES
		('rule/basic/per_hour', 'acme'), ('rule/basic/per_hour', 'blue'), ('rule/basic/per_hour', '1'), ('rule/basic/per_hour', 'ip:192.0.2.1'),
		('rule/by_key/per_hour', 'api.example.com 1'), ('rule/by_key/per_hour', 'api.example.com 2'), ('rule/gone/per_hour', 'x acme'),
		('web', 'acme'), ('web', '192.0.2.1'), ('web', '192.0.2.10'), ('web', 'acme2'), ('net', '2001:db8:0:1::/64'), ('net', '2001:db8:0:1::7'),
		('ban/rule/basic', 'user/acme'), ('ban/rule/basic', 'key/1'), ('ban/rule/basic', 'network/192.0.2.1/32'),
		('header', 'sha256:' || encode(sha256('key of acme'), 'hex')), ('header', 'sha256:' || encode(sha256('key of blue'), 'hex')), ('long', '` + ratelimit.DigestKey(longKey) + `')) AS v(p, k);
	INSERT INTO rate_limit_durable (prefix, key, count, expires_at) SELECT 'rule/by_ip/per_hour', k, 1, now() + interval '1 h' FROM unnest('{192.0.2.1 blue,192.0.2.9 acme,192.0.2.9 blue}'::text[]) AS k;
	SELECT rate_limit_make_partition(d::date) FROM (VALUES (date '2026-01-01'), (date '2026-01-02')) AS v(d);
	INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, node, key, user_id, key_id, address, also)
		SELECT d, 1, 1, 'allowed', p, 'n', k, u, i, a::inet, o::text[] FROM (VALUES (timestamptz '2026-01-01 12:00Z'), ('2026-01-02 12:00Z')) AS days(d), (VALUES
			('rule/basic', 'acme', 'acme', NULL, '192.0.2.7', NULL), ('rule/by_key', 'api.example.com 1', NULL, 1, NULL, NULL), ('rule/by_key', 'api.example.com 1', 'blue', NULL, NULL, NULL),
			('web', 'acme', NULL, NULL, '192.0.2.0/24', NULL), ('zone', 'x', NULL, NULL, NULL, '{web,acme}'), ('rule/basic', '1', '1', NULL, '192.0.2.1', NULL),
			('zone', 'x', 'blue', NULL, '2001:db8:0:1::/64', '{web,acme}')) AS v(p, k, u, i, a, o);
	ALTER TABLE rate_limit_audit DETACH PARTITION rate_limit_audit_20260102;
	SELECT rate_limit_make_partition_of('rate_limit_usage_hours', date '2026-01-01');
	INSERT INTO rate_limit_usage_hours (hour, user_id, key_id, requests) VALUES ('2026-01-01 12:00Z', 'acme', 1, 1), ('2026-01-01 12:00Z', 'blue', 2, 1);
	INSERT INTO rate_limit_usage (day, user_id, key_id, requests, last_request) VALUES ('2026-01-01', 'acme', 0, 1, now()), ('2026-01-01', 'acme', 1, 1, now()), ('2026-01-01', 'blue', 2, 1, now())`

// forgets is a database with persons.
type forgets struct {
	*testing.T
	dsn string
	db  *admin.Database
}

func newForgets(t *testing.T) *forgets {
	t.Helper()
	dsn := migrated(t)
	cluster.Execute(t, dsn, persons)
	db, err := admin.Open(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return &forgets{t, dsn, db}
}

// text is the result of a query with one text.
func (f *forgets) text(sql string) (text string) {
	f.Helper()
	conn := cluster.Connect(f.T, f.dsn)
	defer conn.Close(context.Background())
	if err := conn.QueryRow(context.Background(), "SELECT coalesce(("+sql+"), '')").Scan(&text); err != nil {
		f.Fatal(err)
	}
	return text
}

const allCounters = `SELECT string_agg(prefix || ' ' || left(key, 30), E'\n' ORDER BY prefix COLLATE "C", key COLLATE "C") FROM (SELECT prefix, key FROM rate_limit_ephemeral UNION ALL SELECT prefix, key FROM rate_limit_durable) AS c`

// everyRow counts the rows of all tables that Forget changes, and says which are there.
const everyRow = `SELECT md5(string_agg(r, ' ' ORDER BY r)) FROM (SELECT t::text AS r FROM rate_limit_ephemeral t UNION ALL SELECT t::text FROM rate_limit_durable t UNION ALL SELECT t::text FROM rate_limit_audit t
	UNION ALL SELECT t::text FROM rate_limit_audit_20260102 t UNION ALL SELECT t::text FROM rate_limit_usage t UNION ALL SELECT t::text FROM rate_limit_usage_hours t UNION ALL SELECT t::text FROM rate_limit_overrides t UNION ALL SELECT t::text FROM rate_limit_bans t
	UNION ALL SELECT t::text FROM rate_limit_users t UNION ALL SELECT t::text FROM rate_limit_api_keys t) AS a`

// tablesWithAcme are all tables with a row that has the word acme.
const tablesWithAcme = `SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition AND relname LIKE 'rate\_limit\_%'
	AND (xpath('//n/text()', query_to_xml(format('SELECT count(*) AS n FROM %I t WHERE t::text ~ ''\macme\M''', relname), false, true, '')))[1]::text <> '0'`

// forget forgets a person after a dry run, which must change nothing and count the same. want has
// the tables with rows that went, and gone the counters.
func (f *forgets) forget(p *admin.Person, account bool, want, gone string) *admin.Forgetting {
	f.Helper()
	before, rows := f.text(allCounters), f.text(everyRow)
	dry, err := f.db.Forget(context.Background(), p, account, true)
	if err != nil {
		f.Fatal(err)
	}
	if f.text(everyRow) != rows {
		f.Error("a dry run has changed a table")
	}
	done, err := f.db.Forget(context.Background(), p, account, false)
	if err != nil {
		f.Fatal(err)
	}
	for what, forgotten := range map[string]*admin.Forgetting{"a dry run": dry, "forget": done} {
		var tables []string
		for _, table := range forgotten.Tables {
			if table.Get("rows") != int64(0) {
				tables = append(tables, strings.TrimPrefix(strings.TrimPrefix(table.Text("table"), "public."), "rate_limit_")+" "+fmt.Sprint(table.Get("rows")))
			}
		}
		if got := strings.Join(tables, ", "); got != want {
			f.Errorf("%s counts %s, want %s", what, got, want)
		}
	}
	after := f.text(allCounters)
	var went []string
	for line := range strings.Lines(before + "\n") {
		if !strings.Contains(after+"\n", line) {
			went = append(went, strings.TrimSpace(line))
		}
	}
	if got := strings.Join(went, ", "); got != gone {
		f.Errorf("the counters that went are %s, want %s", got, gone)
	}
	again, err := f.db.Forget(context.Background(), p, account, true)
	if err != nil {
		f.Fatal(err)
	}
	for _, table := range again.Tables {
		if table.Get("rows") != int64(0) {
			f.Errorf("%s has %d rows of the person left", table.Text("table"), table.Get("rows"))
		}
	}
	return done
}

// A user is forgotten with its API keys. Nobody else loses a row, also not a user whose name is
// the id of a key.
func TestForgetAUser(t *testing.T) {
	f := newForgets(t)
	done := f.forget(&admin.Person{User: "acme"}, false, "audit 4, audit_20260102 4, usage 2, usage_hours 1, overrides 2, bans 2, durable 1, ephemeral 7",
		"ban/rule/basic key/1, ban/rule/basic user/acme, header sha256:"+f.text("SELECT left(encode(sha256('key of acme'), 'hex'), 23)")+
			", rule/basic/per_hour acme, rule/by_ip/per_hour 192.0.2.9 acme, rule/by_key/per_hour api.example.com 1, rule/gone/per_hour x acme, web acme")
	if len(done.Notes) != 1 || !strings.Contains(done.Notes[0], "rate_limit_changes") {
		t.Errorf("the notes are %q", done.Notes)
	}
	f.forget(&admin.Person{User: "acme"}, true, "api_keys 1, users 1", "")
	// Rows of blue are left, whose counters have such a key, and lines that proxies need.
	if left := f.text(tablesWithAcme); left != "rate_limit_audit rate_limit_audit_20260102 rate_limit_changes" {
		t.Errorf("the tables that still name the user are %s", left)
	}
	f.forget(&admin.Person{User: "1"}, true, "audit 1, audit_20260102 1, bans 1, users 1, ephemeral 1", "rule/basic/per_hour 1")
	if left := f.text("SELECT string_agg(user_id, ' ') FROM rate_limit_users"); left != "blue" {
		t.Errorf("the users that are left are %s", left)
	}
}

// An address is forgotten in all forms that counters have for it, and no other one that begins
// with it. A network that has more addresses stays.
func TestForgetAnAddress(t *testing.T) {
	f := newForgets(t)
	f.forget(&admin.Person{Address: netip.MustParseAddr("::ffff:192.0.2.1")}, false, "audit 1, audit_20260102 1, bans 1, durable 1, ephemeral 3",
		"ban/rule/basic network/192.0.2.1/32, rule/basic/per_hour ip:192.0.2.1, rule/by_ip/per_hour 192.0.2.1 blue, web 192.0.2.1")
	f.forget(&admin.Person{Address: netip.MustParseAddr("2001:db8:0:1::7")}, true, "audit 1, audit_20260102 1, bans 1, ephemeral 2", "net 2001:db8:0:1::/64, net 2001:db8:0:1::7")
	if left := f.text("SELECT string_agg(network::text, ' ') FROM rate_limit_bans WHERE network IS NOT NULL"); left != "192.0.2.0/24" {
		t.Errorf("the networks that are banned are %s", left)
	}
}

// An API key is forgotten by its id, and by itself, also where its digest is stored. So is the key of
// any other counter, however long.
func TestForgetAKey(t *testing.T) {
	f := newForgets(t)
	digest := func(key string) string {
		return "sha256:" + f.text("SELECT left(encode(sha256('"+key+"'), 'hex'), 23)")
	}
	f.forget(&admin.Person{KeyID: 1}, false, "audit 1, audit_20260102 1, usage 1, usage_hours 1, overrides 1, bans 1, ephemeral 3",
		"ban/rule/basic key/1, header "+digest("key of acme")+", rule/by_key/per_hour api.example.com 1")
	f.forget(&admin.Person{Key: "key of blue"}, true, "usage 1, usage_hours 1, bans 1, api_keys 1, ephemeral 2", "header "+digest("key of blue")+", rule/by_key/per_hour api.example.com 2")
	f.forget(&admin.Person{Key: longKey}, true, "ephemeral 1", "long "+ratelimit.DigestKey(longKey)[:30])
	f.forget(&admin.Person{Key: "192.0.2.10"}, false, "ephemeral 1", "web 192.0.2.10")
	if _, err := f.db.Forget(context.Background(), &admin.Person{}, false, false); err == nil || !strings.Contains(err.Error(), "who is to be forgotten") {
		t.Errorf("nobody is forgotten: %v", err)
	}
}

// All goes or nothing. A proxy that runs is named, because it may write more rows.
func TestForgetIsOneTransaction(t *testing.T) {
	f := newForgets(t)
	cluster.Execute(t, f.dsn, `INSERT INTO rate_limit_nodes (node, epoch) VALUES ('edge-1', 1);
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END';
		CREATE TRIGGER refuse BEFORE DELETE ON rate_limit_ephemeral FOR EACH ROW EXECUTE FUNCTION refuse()`)
	before := f.text(everyRow)
	if _, err := f.db.Forget(context.Background(), &admin.Person{User: "acme"}, true, false); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Fatalf("the error is %v", err)
	}
	if f.text(everyRow) != before {
		t.Error("a Forget that fails has changed a table")
	}
	cluster.Execute(t, f.dsn, "DROP TRIGGER refuse ON rate_limit_ephemeral")
	done, err := f.db.Forget(context.Background(), &admin.Person{User: "acme"}, true, false)
	if err != nil || len(done.Notes) != 2 || !strings.Contains(done.Notes[1], "edge-1") {
		t.Errorf("%+v, %v", done, err)
	}
}
