package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/integration/internal/script"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// scriptLimits are limits of all kinds, small enough to be used up.
var scriptLimits = []string{
	"a sliding_window - false 7 1s",
	"b sliding_window - true 100 10s",
	"c fixed_window - false 5 1s",
	"d fixed_window - true 20 1d calendar Europe/Berlin",
	"e token_bucket - false 5 1s",
	"f token_bucket 12 true 3 700ms",
	"g sliding_log - false 6 1s",
	"h sliding_log - true 9 2s",
	"i gcra - false 10 1s",
	"j gcra 4 true 2 300ms",
}

// otherLimits are on the same rows with other algorithms, as after a change of the
// configuration.
var otherLimits = []string{
	"a fixed_window - false 9 2s",
	"e gcra - false 5 1s",
	"i token_bucket - false 6 1s",
	"g sliding_window - false 6 1s",
}

// randomScript is a script with that many requests. The result of a smooth script does not
// depend on when expired rows are deleted, which is random in memory: its clock is never set
// back, its limits do not change, and it has no token bucket, which refills in step with its
// first hit.
func randomScript(random *rand.Rand, requests int, smooth bool) string {
	limits := append(append([]string(nil), scriptLimits...), otherLimits...)
	if smooth {
		limits = slices.DeleteFunc(append([]string(nil), scriptLimits...),
			func(l string) bool { return strings.Contains(l, "token_bucket") })
	}
	var b strings.Builder
	b.WriteString(strings.Join(limits, "\n") + "\n\n")
	now := int64(1767225600000000) // 2026
	for range requests {
		switch random.IntN(10) {
		case 0:
			now += random.Int64N(5000000)
		case 1:
			if !smooth {
				now -= random.Int64N(300000)
			}
		default:
			now += random.Int64N(200000)
		}
		kind := "take"
		switch random.IntN(20) {
		case 0:
			kind = "reset"
		case 1:
			kind = "peek"
		}
		fmt.Fprintf(&b, "%s %d", kind, now)
		prefixes := map[byte]bool{} // no two hits on one row
		for range 1 + random.IntN(3) {
			at := random.IntN(len(limits))
			if prefixes[limits[at][0]] {
				continue
			}
			prefixes[limits[at][0]] = true
			cost := 1 + random.Int64N(3)
			switch random.IntN(12) {
			case 0:
				cost = 0
			case 1:
				cost = -cost
			case 2:
				cost = 200
			}
			fmt.Fprintf(&b, " %d:%s:%d", at, []string{"x", "y", "secret"}[random.IntN(3)], cost)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// TestInterpretedCoreDecidesAsCompiled has random requests decided by the compiled and by
// the interpreted stores, in memory and in Postgres.
func TestInterpretedCoreDecidesAsCompiled(t *testing.T) {
	t.Parallel()
	p := loadPlugin(t)
	if _, err := p.interpreter.Eval(`import "` + modulePath + `/integration/internal/script"`); err != nil {
		t.Fatal(err)
	}
	memory := p.eval(t, "script.Memory").Interface().(func(string) string)
	postgres := p.eval(t, "script.Postgres").Interface().(func(string, string) string)
	for seed := range uint64(3) {
		text := randomScript(rand.New(rand.NewPCG(seed, 1)), 400, true)
		compareDecisions(t, text, "in memory", script.Memory(text), memory(text))
		text = randomScript(rand.New(rand.NewPCG(seed, 2)), 400, false)
		compareDecisions(t, text, "in Postgres", script.Postgres(cluster.Open(t), text),
			postgres(cluster.Open(t), text))
	}
}

// compareDecisions shows the first request with different decisions.
func compareDecisions(t *testing.T, text, where, compiled, interpreted string) {
	t.Helper()
	requests := strings.Split(strings.SplitN(text, "\n\n", 2)[1], "\n")
	a, b := strings.Split(compiled, "\n"), strings.Split(interpreted, "\n")
	if len(a) != len(b) || len(a) < 100 {
		t.Fatalf("%s: %s\ncompiled, %s\ninterpreted", where, compiled, interpreted)
	}
	for i := range a {
		if a[i] != b[i] {
			t.Errorf("%s, request %d: %s\n%s compiled\n%s interpreted\nafter\n%s", where, i, requests[i],
				a[i], b[i], strings.Join(requests[max(0, i-12):i], "\n"))
			return
		}
	}
}
