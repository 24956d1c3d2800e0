package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/chain"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/parts"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// fakeCitus is a database with counts in parts, each on a server of its own.
type fakeCitus struct {
	fakeDB
	parts  [testParts]fakeDB
	stores *[]*engine.Store // of the parts
}

// openParts opens a store over parts, and the stores of the parts, once they are known.
func openParts(t testing.TB, db pgdb.DB, o engine.Options) (chain.Store, *[]*engine.Store) {
	t.Helper()
	var opened []*engine.Store
	s, err := parts.Open(db, func(db pgdb.DB, place chain.Place) (chain.Store, error) {
		o := o
		o.Place = place
		s, err := engine.New(db, o)
		if place.Tables != nil {
			opened = append(opened, s)
		}
		return s, err
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, &opened
}

// At is the server of the part that is the port.
func (c *fakeCitus) At(_ string, port int) (pgdb.DB, error) { return &c.parts[port], nil }

// newFakeCitus returns a database, and a store on it that knows the parts.
func newFakeCitus(t *testing.T) (*fakeCitus, chain.Store) {
	t.Helper()
	c := &fakeCitus{}
	c.set(answerParts, nil)
	for part := range c.parts {
		c.parts[part].set(answerParts, nil)
	}
	store, opened := openParts(t, c, without)
	c.stores = opened
	takeOne(t, store, ratelimit.Hit{Limit: fakeLimit, Key: "first", Cost: 1})
	return c, store
}

// answerParts is a server of Citus that admits every hit.
func answerParts(ctx context.Context, statements []*pgdb.Statement) error {
	switch s := statements[0]; s.SQL {
	case schema.PartsReady:
		addRow(s, [][]byte{int4(1)})
	case schema.PartNames:
		for part := range testParts {
			addRow(s, [][]byte{fmt.Append(nil, "rl_p", part)})
		}
	case schema.PartRoutes:
		for part := range int64(testParts) {
			for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable", "rate_limit_processes"} {
				name := fmt.Sprintf("rl_p%d.%s_1", part, table)
				addRow(s, [][]byte{int4(part + 1), []byte(table), []byte(name), []byte("rate_limit_guard(1)"), []byte("host"), int4(part)})
			}
		}
	default:
		return admit(ctx, statements)
	}
	return nil
}

func inPart(part int) ratelimit.Hit {
	return ratelimit.Hit{Limit: fakeLimit, Key: keyIn(part), Cost: 1}
}

func apartIn(part int) ratelimit.Hit {
	h := inPart(part)
	h.Apart = true
	return h
}

var errWorkerDown = errors.New("the worker is down")

// stop stops the server of a part, which the store notices.
func (c *fakeCitus) stop(t *testing.T, store chain.Store, part int) {
	t.Helper()
	c.parts[part].set(failWith(errWorkerDown), failWith(errWorkerDown))
	if _, _, err := tryOne(store, longTime, inPart(part)); !errors.Is(err, ratelimit.ErrUnavailable) {
		t.Errorf("a part that is down: %v", err)
	}
}

func TestAHitApartOfAPartThatIsDownFailsNothing(t *testing.T) {
	c, store := newFakeCitus(t)
	c.stop(t, store, 1)
	for name, hits := range map[string][]ratelimit.Hit{
		"before an enforced limit": {apartIn(1), inPart(2)},
		"before others apart":      {apartIn(1), apartIn(2), apartIn(1)},
	} {
		decisions := make([]ratelimit.Decision, len(hits))
		err := store.Take(context.Background(), longTime, hits, decisions)
		if err != nil || decisions[0].Source != ratelimit.Undecided || decisions[1].Source != ratelimit.FromPostgres || !decisions[1].Allowed {
			t.Errorf("%s: %+v, %v", name, decisions, err)
		}
	}
}

func TestARefusalStandsIfTheHomeOfTheRequestIsDown(t *testing.T) {
	c, store := newFakeCitus(t)
	c.stop(t, store, 1)
	c.parts[2].set(refuse, nil)
	refund := inPart(1)
	refund.Subject = refund.Key
	refund.Cost = -1
	decisions := make([]ratelimit.Decision, 2)
	if err := store.Take(context.Background(), longTime, []ratelimit.Hit{inPart(2), refund}, decisions); err != nil || decisions[0].Allowed {
		t.Errorf("%+v, %v", decisions, err)
	}
}

func TestARefusedRequestGivesBackToTheWindowOfItsCharge(t *testing.T) {
	c, store := newFakeCitus(t)
	c.parts[2].set(refuse, nil)
	var claims []int64
	c.parts[1].set(func(ctx context.Context, statements []*pgdb.Statement) error {
		for _, s := range statements {
			if strings.Contains(s.SQL, "$8") { // a refund or a settlement
				claims = append(claims, s.Args[len(s.Args)-1].([]int64)...)
			}
		}
		return admit(ctx, statements)
	}, nil)
	home := inPart(2)
	home.Subject = home.Key
	decisions := make([]ratelimit.Decision, 2)
	err := store.Take(context.Background(), longTime, []ratelimit.Hit{inPart(1), home}, decisions)
	if err != nil || decisions[1].Allowed || decisions[0].Remaining != 5 || fmt.Sprint(claims) != fmt.Sprint([]int64{decisions[0].DecidedAt}) {
		t.Errorf("%+v, %v; given back with the times %v", decisions, err, claims)
	}
}

// failOnce fails the next hit on a part. routesRead is how often the part's server was asked for the routes. The store
// reads the identity of the server beside the hits.
func (c *fakeCitus) failOnce(part int, code, text string) (routesRead *int) {
	failed, read := false, 0
	c.parts[part].set(func(ctx context.Context, statements []*pgdb.Statement) error {
		switch {
		case statements[0].SQL == schema.PartRoutes:
			read++
		case len(keysOf(statements[0])) > 0 && !failed:
			failed = true
			for _, s := range statements {
				serverError(s, code, text)
			}
			return nil
		}
		return answerParts(ctx, statements)
	}, nil)
	return &read
}

func TestOnlyAPartThatIsNotHereHasItsRouteReadAgain(t *testing.T) {
	c, store := newFakeCitus(t)
	for text, want := range map[string]int{
		"could not serialize access due to concurrent update": 0,
		"ERROR: shard 7 is not here (SQLSTATE 40001)":         1,
		"shard 7 is being moved":                              1,
	} {
		read := c.failOnce(1, "40001", text)
		takeOne(t, store, inPart(1))
		if *read != want {
			t.Errorf("%s: the routes were read %d times, want %d", text, *read, want)
		}
	}
}

func TestChargesFromBeforeThePartsAreKnownAreBilledToTheirParts(t *testing.T) {
	c := &fakeCitus{}
	c.set(failWith(errWorkerDown), failWith(errWorkerDown))
	for part := range c.parts {
		c.parts[part].set(answerParts, nil)
	}
	store := newChain(t, c, without)
	store.UseLocal()
	h := hitOn("early", 10, true)
	h.Key = keyIn(3)
	if decisions := make([]ratelimit.Decision, 1); !store.TakeLocal(ratelimit.ErrUnavailable, []ratelimit.Hit{h}, decisions) || !decisions[0].Allowed {
		t.Fatalf("%+v", decisions)
	}
	billed := make(chan int, testParts)
	for part := range c.parts {
		c.parts[part].set(func(ctx context.Context, statements []*pgdb.Statement) error {
			if slices.ContainsFunc(statements, func(s *pgdb.Statement) bool { return slices.Contains(keysOf(s), h.Key) }) {
				billed <- part
			}
			return admit(ctx, statements)
		}, nil)
	}
	c.set(answerParts, nil)
	takeOne(t, store, inPart(1))
	store.Bill()
	if part := <-billed; part != 3 {
		t.Errorf("billed to part %d, want 3", part)
	}
}
