package integration

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// telling is an upstream that answers with what the proxy tells it.
var telling = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%q %q %q %q", r.Header["X-Ratelimit-User"], r.Header["X-Ratelimit-Tier"], r.Header["X-Ratelimit-Key-Id"], r.Header["X-Ratelimit-Rule"])
})

// TestInterpretedPolicyDoesWhatCompiledDoes sends the same requests to the compiled and to the
// interpreted plugin, each with a database of its own that has the same rows.
func TestInterpretedPolicyDoesWhatCompiledDoes(t *testing.T) {
	p := loadPlugin(t)
	key, insert := newKey(t, 7, "alice")
	revoked, insertRevoked := newKey(t, 8, "bob")
	sql := people + insert + insertRevoked + `
		UPDATE rate_limit_api_keys SET revoked_at = now() WHERE id = 8;
		INSERT INTO rate_limit_bans (user_id, until) VALUES ('mallory', now() + interval '1 h');
		INSERT INTO rate_limit_bans (network) VALUES ('198.51.100.0/24');
		SELECT rate_limit_rule('free', family => 'plan', priority => 700, tiers => '{free}', algorithm => 'token_bucket', per_hour => 6, burst => 4);
		SELECT rate_limit_rule('pro', family => 'plan', priority => 600, tiers => '{pro}', algorithm => 'fixed_window', per_hour => 3, per_day => 5, status => 402, message => 'Pay', retry_after => '90 s');
		SELECT rate_limit_rule('protect', family => 'protect', paths => '{/api/*}', count_by => '{all}', algorithm => 'fixed_window', per_hour => 9);
		SELECT rate_limit_rule('bill', tiers => '{free}', algorithm => 'fixed_window', per_day => 1, on_exceed => 'overage');
		SELECT rate_limit_rule('trial', mode => 'shadow', algorithm => 'fixed_window', per_hour => 1);
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed/*}', message => 'No "entry"');
		SELECT rate_limit_rule('health', action => 'exempt', paths => '{/health}');
		INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('pro', 'per_hour', 'bob', 2);`
	config := func(dsn string) object {
		return object{
			"dsn": dsn, "timeout": "30s", "onError": "deny", "ipStrategy": object{"depth": 1},
			"policy": object{"apiKey": "{header.Authorization}", "user": "{header.X-User}", "refresh": "50ms", "forwardHeaders": true},
			"zones": []object{{"prefix": "zone", "key": "{header.X-User}", "limit": "7 1h", "algorithm": "fixed_window", "ban": "1h after 1000 refusals in 1m"},
				{"prefix": "paid", "key": "{header.X-API-Key}{cookie.session}{query.page}", "cost": "{header.X-Cost}", "limit": "1000 1h", "algorithm": "fixed_window"}},
		}
	}
	dsnGo, dsnYaegi := policyDatabase(t, sql), policyDatabase(t, sql)
	byGo, byYaegi := compiled(t, telling, config(dsnGo)), p.mustHandler(t, telling, config(dsnYaegi))
	statuses := map[int]int{}
	for round := range 6 {
		for _, request := range []struct {
			path    string
			headers []string
		}{
			{"/api/x", []string{"Authorization", "Bearer " + key, "X-RateLimit-User", "root"}},
			{"/", []string{"Authorization", revoked}},
			{"/", []string{"Authorization", "unknown"}},
			{"/api/x", []string{"X-User", "bob", "X_RateLimit_User", "root"}},
			{"/", []string{"X-User", "mallory"}},
			{"/", []string{"X-Forwarded-For", "198.51.100.7"}},
			{"/api/y", []string{"X-Forwarded-For", "2001:db8::1"}},
			{"/closed/x/y", nil},
			{"/health", []string{"X-User", "alice"}},
			{"/a%2F..%2Fb", nil},
			{"/?page=2", []string{"X-API-Key", "sha256:k1", "Cookie", "a=1; session=s1", "X-Cost", "4"}},
			{"/", []string{"X-API-Key", strings.Repeat("long", 200) + "\xff", "X-Cost", "-1"}},
		} {
			a, b := askPath(byGo, request.path, request.headers...), askPath(byYaegi, request.path, request.headers...)
			statuses[a.Code]++
			for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Overage", "Content-Type", "WWW-Authenticate"} {
				if a.Header().Get(name) != b.Header().Get(name) {
					t.Errorf("round %d, %v: %s: %q compiled, %q interpreted", round, request, name, a.Header().Get(name), b.Header().Get(name))
				}
			}
			if (a.Header().Get("Retry-After") == "") != (b.Header().Get("Retry-After") == "") {
				t.Errorf("round %d, %v: Retry-After %q compiled, %q interpreted", round, request, a.Header().Get("Retry-After"), b.Header().Get("Retry-After"))
			}
			if a.Code != b.Code || withoutDigits(a.Body.String()) != withoutDigits(b.Body.String()) || strings.Contains(b.Body.String(), "root") {
				t.Errorf("round %d, %v: %d %s compiled, %d %s interpreted", round, request, a.Code, a.Body, b.Code, b.Body)
			}
		}
	}
	for _, status := range []int{200, 400, 401, 402, 403, 429} {
		if statuses[status] == 0 {
			t.Errorf("no answer has status %d: %v", status, statuses)
		}
	}
	for _, prefix := range []string{"rule/free/per_hour", "rule/pro/per_hour", "rule/protect/per_hour", "rule/bill/per_day", "rule/trial/per_hour", "zone", "paid"} {
		inGo, inYaegi := countsOf(t, dsnGo, prefix), countsOf(t, dsnYaegi, prefix)
		if inGo != inYaegi || inGo == "" {
			t.Errorf("%s: %s compiled, %s interpreted", prefix, inGo, inYaegi)
		}
	}
	// Each refusal by the zone counts once towards a ban. They are counted later, in their order.
	const bans = edge.BanPrefix + "zone"
	var inGo, inYaegi string
	awaitSameCounts := func(before string) {
		t.Helper()
		await(t, "the same refusals to count towards a ban", func() bool {
			inGo, inYaegi = countsOf(t, dsnGo, bans), countsOf(t, dsnYaegi, bans)
			return inYaegi != before && inGo == inYaegi
		})
	}
	awaitSameCounts("")
	// One more refusal adds one to the counts. If another refusal were counted again, the counts would differ.
	before := inYaegi
	askPath(byGo, "/api/y", "X-Forwarded-For", "2001:db8::1")
	askPath(byYaegi, "/api/y", "X-Forwarded-For", "2001:db8::1")
	awaitSameCounts(before)
	if was, is := sumOfCounts(t, before), sumOfCounts(t, inYaegi); is != was+1 {
		t.Errorf("after one more refusal %s count towards a ban, before %s", inYaegi, before)
	}
	if log := p.err.String(); strings.Contains(log, key) || strings.Contains(log, "panic") {
		t.Errorf("log: %s", log)
	}
}

// sumOfCounts adds what countsOf returns.
func sumOfCounts(t *testing.T, counts string) (sum int) {
	t.Helper()
	for _, row := range strings.Split(counts, ", ") {
		n, err := strconv.Atoi(row[strings.LastIndex(row, " ")+1:])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// countsOf are the keys of a prefix with their counts.
func countsOf(t *testing.T, dsn, prefix string) (counts string) {
	t.Helper()
	conn := connect(t, dsn)
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), `SELECT coalesce(string_agg(concat(key, ' ', count), ', ' ORDER BY key COLLATE "C"), '') FROM rate_limit_ephemeral WHERE prefix = $1`, prefix).Scan(&counts); err != nil {
		t.Fatal(err)
	}
	return counts
}
