package command_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// follower collects the output of a running `audit --follow`.
type follower struct {
	t      *testing.T
	mu     sync.Mutex
	output bytes.Buffer // guarded by mu
	stop   func()       // ends the command, and waits until it has returned
}

func (f *follower) Write(data []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.output.Write(data)
}

// count returns the number of times that the command has printed text.
func (f *follower) count(text string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Count(f.output.String(), text)
}

func (f *follower) await(text string) {
	f.t.Helper()
	await.Within(f.t, time.Minute, text, func() bool { return f.count(text) > 0 })
}

// startFollow starts a command that follows the audit log, with the arguments args and the flags --dsn and
// --json. It stops the command when the test ends.
func (s *shell) startFollow(t *testing.T, args ...string) *follower {
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{t: t}
	root := s.root(append([]string{"pg-ratelimit", "--dsn", s.dsn, "--json"}, args...)...)
	root.SetOut(f)
	root.SetErr(f)
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("audit --follow returned %v, want no error", err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

// The command `audit --follow` prints each new row once, the newest 1000 if there are more. It also prints
// the row of a transaction that commits after transactions with later rows.
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
	// With -n 2, the command first prints the rows of the users b and c. The row of a is older, and the row
	// of "other" has another prefix.
	f := s.startFollow(t, "audit", "--follow", "--prefix", "web", "-n", "2")
	field := func(user string) string { return fmt.Sprintf(`"user_id":%q`, user) }
	f.await(field("c"))
	s.sql(insert("d", "5 s"))
	f.await(field("d"))
	// The transaction with the row of the user "late" begins before the transactions of e, f and g, and
	// commits after them. Because of the SAVEPOINT, the row's xmin is the id of a subtransaction.
	late := cluster.Connect(t, s.dsn)
	defer late.Close(context.Background())
	_, err := late.Exec(t.Context(),
		"BEGIN; SELECT pg_current_xact_id(); SAVEPOINT part; "+insert("late", "3 s")+"; RELEASE part")
	if err != nil {
		t.Fatal(err)
	}
	s.sql(insert("e", "2 s"))
	f.await(field("e"))
	s.sql(insert("f", "1 s") + ";" + insert("g", "0 s"))
	f.await(field("g"))
	if _, err := late.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	f.await(field("late"))
	// Of 1001 new rows, the command prints the newest 1000 and an error.
	s.sql("INSERT INTO rate_limit_audit (id, time, cost, duration_us, outcome, prefix, node, user_id) " +
		"SELECT nextval('rate_limit_audit_id'), now(), 1, 1, 'limited', 'web', 'edge', i " +
		"FROM generate_series(1, 1001) AS i")
	f.await("at least 1000 new rows")
	f.stop()
	for user, want := range map[string]int{"a": 0, "other": 0, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1,
		"late": 1} {
		if n := f.count(field(user)); n != want {
			t.Errorf("audit --follow printed the row of %s %d times, want %d", user, n, want)
		}
	}
	if n, want := f.count(`"user_id":`), 7+1000; n != want {
		t.Errorf("audit --follow printed %d rows, want %d", n, want)
	}
}
