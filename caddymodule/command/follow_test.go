package command_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// followed collects the output of a running audit --follow.
type followed struct {
	t    *testing.T
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
	end  func()
}

func (w *followed) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(text)
}

// times returns how often text was printed.
func (w *followed) times(text string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.text.String(), text)
}

func (w *followed) await(text string) {
	w.t.Helper()
	await.Within(w.t, time.Minute, text, func() bool { return w.times(text) > 0 })
}

// follow starts audit --follow with further args, until the test ends.
func (s *shell) follow(t *testing.T, args ...string) *followed {
	ctx, cancel := context.WithCancel(t.Context())
	w := &followed{t: t}
	root := s.root(append([]string{"pg-ratelimit", "--dsn", s.dsn, "--json"}, args...)...)
	root.SetOut(w)
	root.SetErr(w)
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	w.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("it ended with %v, want no error", err)
		}
	})
	t.Cleanup(w.end)
	return w
}

// A row is new even if its transaction commits after later ones, or if the row is in another partition.
func TestAuditFollowShowsEachNewRowOnce(t *testing.T) {
	s := newShell(t, schema.File)
	s.sql("SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date + i) FROM " +
		"generate_series(-1, 1) AS i")
	insert := func(user, ago string) string {
		return fmt.Sprintf("INSERT INTO rate_limit_audit (id, time, cost, duration_us, outcome, prefix, "+
			"node, user_id) VALUES (nextval('rate_limit_audit_id'), now() - interval '%s', 1, 1, 'limited', "+
			"'web', 'edge', '%s')", ago, user)
	}
	s.sql(insert("a", "30 s") + ";" + insert("b", "20 s") + ";" + insert("c", "10 s") + ";" +
		strings.Replace(insert("other", "1 s"), "web", "api", 1))
	w := s.follow(t, "audit", "--follow", "--prefix", "web", "-n", "2")
	named := func(user string) string { return fmt.Sprintf(`"user_id":%q`, user) }
	w.await(named("c"))
	s.sql(insert("d", "5 s"))
	w.await(named("d"))
	late := cluster.Connect(t, s.dsn)
	defer late.Close(context.Background())
	if _, err := late.Exec(t.Context(), "BEGIN; SELECT pg_current_xact_id(); SAVEPOINT part; "+insert("late",
		"3 s")+"; RELEASE part"); err != nil {
		t.Fatal(err)
	}
	s.sql(insert("e", "2 s"))
	w.await(named("e"))
	s.sql(insert("f", "1 s") + ";" + insert("g", "0 s"))
	w.await(named("g"))
	if _, err := late.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	w.await(named("late"))
	s.sql("INSERT INTO rate_limit_audit (id, time, cost, duration_us, outcome, prefix, node, user_id) " +
		"SELECT nextval('rate_limit_audit_id'), now(), 1, 1, 'limited', 'web', 'edge', i " +
		"FROM generate_series(1, 1001) AS i")
	w.await("more than 1000 new rows")
	w.end()
	for user, want := range map[string]int{"a": 0, "other": 0, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1,
		"late": 1} {
		if n := w.times(named(user)); n != want {
			t.Errorf("%s is shown %d times, want %d", user, n, want)
		}
	}
	if n := w.times(`"user_id":`); n != 7+1000 {
		t.Errorf("%d rows are shown, want 7 and 1000 of 1001", n)
	}
}
