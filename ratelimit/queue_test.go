package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// order is what a caller of a Queue asks for and gets.
type order struct {
	call      *ratelimit.Call
	hits      []ratelimit.Hit
	delivered []ratelimit.Decision
	err       error
}

// desk is a program that does its work on requests in a queue's functions.
type desk struct {
	queue   *ratelimit.Queue
	mu      sync.Mutex
	batches []int // how many calls each fill was for
	broken  func(o *order, during string)
}

func newDesk(p *ratelimit.Postgres, timeout time.Duration) *desk {
	d := &desk{}
	d.queue = p.NewQueue(timeout, d.fill, d.deliver)
	return d
}

func (d *desk) fill(calls []*ratelimit.Call) {
	d.mu.Lock()
	d.batches = append(d.batches, len(calls))
	d.mu.Unlock()
	for _, c := range calls {
		o := c.Owner.(*order)
		if d.broken != nil {
			d.broken(o, "fill")
		}
		c.Hits = append(c.Hits, o.hits...)
	}
}

func (d *desk) deliver(calls []*ratelimit.Call) {
	for _, c := range calls {
		o := c.Owner.(*order)
		if d.broken != nil {
			d.broken(o, "deliver")
		}
		o.delivered, o.err = append(o.delivered[:0], c.Decisions...), c.Err
	}
}

// ask enters the queue with a call that is new, or was used before.
func (d *desk) ask(o *order, hits ...ratelimit.Hit) error {
	if o.call == nil {
		o.call = ratelimit.NewCall()
		o.call.Owner = o
	}
	o.hits, o.delivered, o.err = hits, nil, nil
	ratelimit.Enter(d.queue, o.call)
	return o.call.Err
}

// TestQueueDecidesAsTake: a store's two ways of asking give the same decisions,
// of calls used over and over.
func TestQueueDecidesAsTake(t *testing.T) {
	s := newSite(t)
	now := atomic.Int64{}
	now.Store(1_700_000_000 * second)
	options := ratelimit.PostgresOptions{CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked, Now: now.Load}
	asked, taken := s.store("", options), s.store("", options)
	d := newDesk(asked, 10*time.Second)
	o := &order{}
	for i, l := range hourly("") {
		l.Zone = ""
		twin := *l
		twin.Prefix = "twin " + l.Prefix
		other := &ratelimit.Limit{Prefix: fmt.Sprint("other", i), Events: 4, Window: time.Minute, Durable: true}
		twinOther := *other
		twinOther.Prefix = "twin " + other.Prefix
		for step, hits := range [][]ratelimit.Hit{
			{{Key: "k", Cost: 1}}, {{Key: "k", Cost: 2}}, {{Key: "k", Cost: 0}}, {{Key: "k", Cost: 9}}, {{Key: "k", Cost: 3, Peek: true}},
			{{Key: "k", Cost: 3}}, {{Key: "k", Cost: 1}}, {{Key: "k", Cost: -2}}, {{Key: "k", Cost: 1}},
			{{Key: "k", Cost: 1}, {Limit: other, Key: "all", Cost: 1}}, {{Key: "k", Cost: 1}, {Limit: other, Key: "all", Cost: 1}},
			{{Key: "secret", Cost: 1, Secret: true}}, {{Key: "sha256:secret", Cost: 1}}, {{Key: "\xff\x00", Cost: 1}}, {{Key: strings.Repeat("k", 600), Cost: 1}},
		} {
			now.Add(1000)
			twins := append([]ratelimit.Hit(nil), hits...)
			for j := range hits {
				if hits[j].Limit == nil {
					hits[j].Limit, twins[j].Limit = l, &twin
				} else {
					twins[j].Limit = &twinOther
				}
			}
			if err := d.ask(o, hits...); err != nil {
				t.Fatal(err)
			}
			want := make([]ratelimit.Decision, len(hits))
			if err := taken.Take(context.Background(), 10*time.Second, twins, want); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(o.delivered) != fmt.Sprint(want) || fmt.Sprint(o.call.Decisions) != fmt.Sprint(want) {
				t.Errorf("%s, step %d: %+v, want %+v", l.Prefix, step, o.delivered, want)
			}
		}
	}
}

// TestQueueIsExact: many callers on one limit, through two queues of two stores.
func TestQueueIsExact(t *testing.T) {
	s := newSite(t)
	for _, l := range hourly("") {
		l.Events = 100
		var admitted, refused, known atomic.Int64
		var group sync.WaitGroup
		for range 2 {
			d := newDesk(s.store("", ratelimit.PostgresOptions{}), 10*time.Second)
			for range 16 {
				group.Add(1)
				go func() {
					defer group.Done()
					o := &order{}
					for range 10 {
						if err := d.ask(o, ratelimit.Hit{Limit: l, Key: "k", Cost: 1}); err != nil {
							t.Error(err)
							return
						}
						switch {
						case o.delivered[0].Allowed:
							admitted.Add(1)
						case o.delivered[0].RetryAfter <= 0:
							t.Errorf("refused with %+v", o.delivered)
						case o.delivered[0].Source == ratelimit.FromBlocked:
							known.Add(1)
						default:
							refused.Add(1)
						}
					}
				}()
			}
		}
		group.Wait()
		if admitted.Load() != 100 || refused.Load() == 0 || known.Load() == 0 || refused.Load()+known.Load() != 220 {
			t.Errorf("%s: %d admitted, %d refused, %d without asking; want 100, and 220 in all", l.Prefix, admitted.Load(), refused.Load(), known.Load())
		}
	}
}

// TestQueueRefusesWhatItKnows, with the decision that Take would give.
func TestQueueRefusesWhatItKnows(t *testing.T) {
	s := newSite(t)
	for _, l := range hourly("") {
		store := s.store("", ratelimit.PostgresOptions{CleanupProbability: -1})
		d := newDesk(store, 10*time.Second)
		o := &order{}
		hit := func(cost int64) ratelimit.Hit { return ratelimit.Hit{Limit: l, Key: "k", Cost: cost} }
		if err := d.ask(o, hit(6)); err != nil || !o.delivered[0].Allowed {
			t.Fatal(err, o.delivered)
		}
		if err := d.ask(o, hit(2)); err != nil || o.delivered[0].Allowed || o.delivered[0].Source != ratelimit.FromPostgres {
			t.Fatal(err, o.delivered)
		}
		before := store.Stats()
		if err := d.ask(o, hit(2)); err != nil {
			t.Fatal(err)
		}
		got := o.delivered[0]
		want := takeOne(t, store, hit(2))
		if want.Source != ratelimit.FromBlocked || store.Stats().Statements != before.Statements || store.Stats().Blocked != before.Blocked+2 {
			t.Errorf("%s: the database was asked", l.Prefix)
		}
		if late := got.RetryAfter - want.RetryAfter; late < 0 || late > lateness {
			t.Errorf("%s: RetryAfter %v, and later %v", l.Prefix, got.RetryAfter, want.RetryAfter)
		}
		got.RetryAfter = want.RetryAfter
		if got != want {
			t.Errorf("%s: %+v, want %+v", l.Prefix, got, want)
		}
		// Another limit of the same request is not asked about.
		open := &ratelimit.Limit{Prefix: "open", Events: 9, Window: time.Hour}
		if err := d.ask(o, ratelimit.Hit{Limit: open, Key: "k", Cost: 1}, hit(2)); err != nil || o.delivered[0].Source != ratelimit.Undecided ||
			o.delivered[1].Source != ratelimit.FromBlocked {
			t.Errorf("%s: %+v, %v", l.Prefix, o.delivered, err)
		}
		// What is given back unblocks.
		if err := d.ask(o, hit(-6)); err != nil {
			t.Fatal(err)
		}
		if err := d.ask(o, hit(2)); err != nil || !o.delivered[0].Allowed {
			t.Errorf("%s: after a refund %+v, %v", l.Prefix, o.delivered, err)
		}
	}
}

// TestQueueOutlivesPanics: a request with which fill or deliver panics fails, and
// those beside it do not.
func TestQueueOutlivesPanics(t *testing.T) {
	for _, during := range []string{"fill", "deliver"} {
		synctest.Test(t, func(t *testing.T) {
			db := &fakeDB{}
			release := make(chan struct{})
			db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
				<-release
				return honest(ctx, statements)
			}
			store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
			defer store.Close()
			d := newDesk(store, time.Minute)
			d.broken = func(o *order, now string) {
				if o.hits[0].Key == "bad" && now == during {
					panic("bad request")
				}
			}
			var group sync.WaitGroup
			for _, key := range []string{"first", "a", "bad", "b"} {
				group.Add(1)
				go func() {
					defer group.Done()
					o := &order{}
					err := d.ask(o, fakeHits(key)...)
					if (err != nil) != (key == "bad") || err != nil && !strings.Contains(err.Error(), "bad request") {
						t.Errorf("%s: %v", key, err)
					}
					if key != "bad" && (len(o.delivered) != 1 || !o.delivered[0].Allowed) {
						t.Errorf("%s: %+v", key, o.delivered)
					}
				}()
				synctest.Wait()
			}
			close(release)
			group.Wait()
		})
	}
}

// TestQueueWithoutDatabase: calls fail as those of Take do, and at once where it
// is known that they will.
func TestQueueWithoutDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &fakeDB{answer: func(ctx context.Context, _ []*ratelimit.Statement) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
		d := newDesk(store, 100*time.Millisecond)
		for i, want := range []struct {
			err   error
			after time.Duration
		}{{ratelimit.ErrTimeout, 100 * time.Millisecond}, {ratelimit.ErrTimeout, 100 * time.Millisecond}, {ratelimit.ErrUnavailable, 0}} {
			began := time.Now()
			if err := d.ask(&order{}, fakeHits("k")...); !errors.Is(err, want.err) || time.Since(began) != want.after {
				t.Errorf("call %d: %v after %v, want %v after %v", i, err, time.Since(began), want.err, want.after)
			}
		}
		store.Close()
		if err := d.ask(&order{}, fakeHits("k")...); !errors.Is(err, ratelimit.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestQueueHoldsMany calls at a time.
func TestQueueHoldsMany(t *testing.T) {
	store := ratelimit.NewPostgres(&fakeDB{}, ratelimit.PostgresOptions{CleanupProbability: -1})
	defer store.Close()
	d := newDesk(store, time.Minute)
	var group sync.WaitGroup
	for i := range 10_000 {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := d.ask(&order{}, fakeHits(fmt.Sprint(i))...); err != nil {
				t.Error(err)
			}
		}()
	}
	group.Wait()
}
