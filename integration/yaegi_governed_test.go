package integration

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// telling is an upstream that answers with what the proxy tells it.
var telling = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%q %q %q %q", r.Header["X-Ratelimit-User"], r.Header["X-Ratelimit-Tier"], r.Header["X-Ratelimit-Key-Id"], r.Header["X-Ratelimit-Rule"])
})

// TestInterpretedPolicyTellsAndBansAsCompiled sends the same requests to the compiled and to the interpreted plugin, each with a
// database of its own that has the same rows: the upstream learns the same, and the same refusals count towards bans.
// TestTheProxiesAnswerTheSame compares the answers.
func TestInterpretedPolicyTellsAndBansAsCompiled(t *testing.T) {
	p := loadPlugin(t)
	key, insert := newKey(t, 7, "alice")
	sql := people + insert + `
		SELECT rate_limit_rule('free', tiers => '{free}', algorithm => 'token_bucket', per_hour => 60, burst => 4);
		SELECT rate_limit_rule('health', action => 'exempt', paths => '{/health}');`
	config := func(dsn string) object {
		return object{
			"dsn": dsn, "timeout": "30s", "onError": "deny", "ipStrategy": object{"depth": 1},
			"policy": object{"apiKey": "{header.Authorization}", "user": "{header.X-User}", "refresh": "50ms", "forwardHeaders": true},
			"zones":  []object{{"prefix": "zone", "key": "{header.X-User}", "limit": "7 1h", "algorithm": "fixed_window", "ban": "1h after 1000 refusals in 1m"}},
		}
	}
	dsnGo, dsnYaegi := policyDatabase(t, sql), policyDatabase(t, sql)
	byGo, byYaegi := compiled(t, telling, config(dsnGo)), p.mustHandler(t, telling, config(dsnYaegi))
	for round := range 6 {
		for _, request := range []struct {
			path    string
			headers []string
		}{
			{"/api/x", []string{"Authorization", "Bearer " + key, "X-RateLimit-User", "root"}},
			{"/api/x", []string{"X-User", "bob", "X_RateLimit_User", "root"}},
			{"/api/y", []string{"X-Forwarded-For", "2001:db8::1"}},
			{"/health", []string{"X-User", "alice"}},
			{"/", []string{"X-API-Key", strings.Repeat("long", 200) + "\xff"}},
		} {
			a, b := askPath(byGo, request.path, request.headers...), askPath(byYaegi, request.path, request.headers...)
			if a.Code != b.Code || withoutDigits(a.Body.String()) != withoutDigits(b.Body.String()) || strings.Contains(b.Body.String(), "root") {
				t.Errorf("round %d, %v: %d %s compiled, %d %s interpreted", round, request, a.Code, a.Body, b.Code, b.Body)
			}
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
	conn := cluster.Connect(t, dsn)
	if err := conn.QueryRow(t.Context(), `SELECT coalesce(string_agg(concat(key, ' ', count), ', ' ORDER BY key COLLATE "C"), '') FROM rate_limit_ephemeral WHERE prefix = $1`, prefix).Scan(&counts); err != nil {
		t.Fatal(err)
	}
	return counts
}
