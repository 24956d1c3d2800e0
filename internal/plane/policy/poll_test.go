package policy_test

import (
	"context"
	"fmt"
	"math/rand"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// Sixteen writers commit in another order than they write, use savepoints, and roll back.
// Every change that becomes visible is found by exactly one poll.
func TestNoChangeIsMissedOrFoundTwice(t *testing.T) {
	s := newSite(t)
	db := s.db()
	defer db.Close()
	poller := policy.NewPoller(db)
	ctx := context.Background()
	if _, everything, err := poller.Poll(ctx); err != nil || !everything {
		t.Fatalf("the first poll: everything %v, %v", everything, err)
	}
	var writers sync.WaitGroup
	for w := range 16 {
		writers.Add(1)
		go func() {
			defer writers.Done()
			random := rand.New(rand.NewSource(int64(w)))
			conn, err := pgx.Connect(ctx, s.dsn)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(ctx)
			for i := range 25 {
				if err := writeBans(ctx, conn, random, fmt.Sprint(w, " ", i)); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	found := make(map[int64]int)
	polls := 0
	for last := false; ; polls++ {
		lines, everything, err := poller.Poll(ctx)
		if err != nil || everything {
			t.Fatalf("everything %v, %v", everything, err)
		}
		for _, line := range lines {
			found[line]++
		}
		if last {
			break
		}
		select {
		case <-done:
			last = true
		default:
		}
	}
	rows, err := s.pool.Query(ctx, "SELECT seq FROM rate_limit_changes WHERE kind = 'ban'")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) < 200 || polls < 20 {
		t.Fatalf("only %d changes and %d polls", len(lines), polls)
	}
	for _, line := range lines {
		if found[line] != 1 {
			t.Errorf("the change %d was found %d times", line, found[line])
		}
		delete(found, line)
	}
	if len(found) > 0 {
		t.Errorf("%d changes were found that are not there", len(found))
	}
}

// writeBans writes some bans in a transaction that commits, or not, after a random time.
func writeBans(ctx context.Context, conn *pgx.Conn, random *rand.Rand, name string) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	for part := range 1 + random.Intn(3) {
		inner, err := tx.Begin(ctx) // a savepoint
		if err != nil {
			return err
		}
		if _, err := inner.Exec(ctx, "INSERT INTO rate_limit_bans (user_id) VALUES ($1)", fmt.Sprint(name, " ", part)); err != nil {
			return err
		}
		if random.Intn(4) == 0 {
			err = inner.Rollback(ctx)
		} else {
			err = inner.Commit(ctx)
		}
		if err != nil {
			return err
		}
		time.Sleep(time.Duration(random.Intn(15)) * time.Millisecond)
	}
	if random.Intn(4) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}

// Transactions that stay open, in this and in another database, neither hide changes nor
// make a poll read more than what is new, with 100,000 old changes in the table.
func TestAnOpenTransactionSlowsNoPoll(t *testing.T) {
	s := newSite(t)
	other := siteOn(t, cluster.Open(t))
	s.exec("INSERT INTO rate_limit_changes (kind, ref, by) SELECT 'user', i::text, 'test' FROM generate_series(1, 100000) AS i")
	ctx := context.Background()
	db := s.db()
	defer db.Close()
	mine, theirs := s.begin(), other.begin()
	if _, err := mine.Exec(ctx, "INSERT INTO rate_limit_bans (user_id) VALUES ('late')"); err != nil {
		t.Fatal(err)
	}
	if _, err := theirs.Exec(ctx, "CREATE TABLE x (); SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	for range 100 { // that begin after the open ones
		s.exec("INSERT INTO rate_limit_changes (kind, ref, by) SELECT 'user', i::text, 'test' FROM generate_series(1, 100) AS i")
	}
	poller := policy.NewPoller(db)
	if _, _, err := poller.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	s.exec("INSERT INTO rate_limit_bans (user_id) VALUES ('early')")
	if pages := pagesOfPoll(t, s, poller.Snapshot()); pages > 100 {
		t.Errorf("the poll reads %d pages", pages)
	}
	if lines, everything, err := poller.Poll(ctx); len(lines) != 1 || everything || err != nil {
		t.Errorf("while the transaction is open: %v, everything %v, %v", lines, everything, err)
	}
	if err := mine.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if pages := pagesOfPoll(t, s, poller.Snapshot()); pages > 100 {
		t.Errorf("the poll reads %d pages", pages)
	}
	if lines, everything, err := poller.Poll(ctx); len(lines) != 1 || everything || err != nil {
		t.Errorf("after its commit: %v, everything %v, %v", lines, everything, err)
	}
	if lines, everything, err := poller.Poll(ctx); len(lines) != 0 || everything || err != nil {
		t.Errorf("after that: %v, everything %v, %v", lines, everything, err)
	}
}

var hitPages = regexp.MustCompile(`Buffers: shared hit=(\d+)(?: read=(\d+))?`)

// pagesOfPoll is how many pages a poll reads, with the plan that a prepared statement keeps.
func pagesOfPoll(t *testing.T, s *site, snapshot string) int {
	t.Helper()
	conn, err := s.pool.Acquire(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	explain := fmt.Sprintf("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) EXECUTE poll('%s');", snapshot)
	results, err := conn.Conn().PgConn().Exec(context.Background(),
		"SET plan_cache_mode = force_generic_plan; PREPARE poll (text) AS "+policy.PollSQL+";"+explain+explain+"DEALLOCATE poll; RESET plan_cache_mode").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var plan strings.Builder
	for _, row := range results[3].Rows {
		plan.Write(row[0])
		plan.WriteByte('\n')
	}
	found := hitPages.FindStringSubmatch(plan.String())
	if found == nil || strings.Contains(plan.String(), "Seq Scan on rate_limit_changes") {
		t.Fatalf("the plan of a poll is\n%s", plan.String())
	}
	hit, _ := strconv.Atoi(found[1])
	read, _ := strconv.Atoi(found[2])
	return hit + read
}

// More than a thousand changes are one: everything is read anew.
func TestAThousandChangesAtOnce(t *testing.T) {
	s := newSite(t)
	s.user("ann", "free")
	s.exec("INSERT INTO rate_limit_users (user_id, tier) SELECT 'u' || i, 'free' FROM generate_series(1, 20000) AS i")
	p := s.policy(policy.Settings{})
	refresh(t, p)
	same(t, "before", decided(t, p, "key of ann", ""), "ann free")
	s.exec(`DO $$ BEGIN FOR i IN 1..20000 LOOP UPDATE rate_limit_users SET tier = 'pro' WHERE user_id = 'u' || i; END LOOP;
		UPDATE rate_limit_users SET tier = 'pro' WHERE user_id = 'ann'; END $$`)
	refresh(t, p)
	same(t, "after 20,000 updates in a transaction", decided(t, p, "key of ann", ""), "ann pro")
	s.exec("UPDATE rate_limit_users SET tier = 'free'")
	if n := s.number("SELECT count(*) FROM rate_limit_changes WHERE ref IS NULL"); n != 2 { // the insertion above is the other one
		t.Errorf("%d changes of all users, want 2", n)
	}
	refresh(t, p)
	same(t, "after one update of 20,000", decided(t, p, "key of ann", ""), "ann free")
}
