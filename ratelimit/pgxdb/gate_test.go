package pgxdb

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pool is a pool of connections to a server that allows so many. A login takes a second, and
// the server refuses all of those under way at once that it does not allow together.
type pool struct {
	gate    gate
	allowed int

	mu      sync.Mutex
	idle    int
	open    int
	logins  int  // under way
	crowd   bool // more logins are under way than are allowed
	refused int
}

var errRefused = errors.New("too many connections")

func newPool(most, allowed int) *pool {
	p := &pool{allowed: allowed}
	p.gate = gate{most: most, idle: func() int { p.mu.Lock(); defer p.mu.Unlock(); return p.idle }}
	return p
}

// call has a connection for that long.
func (p *pool) call(ctx context.Context, long time.Duration) error {
	for {
		if err := p.gate.enter(ctx); err != nil {
			return err
		}
		if p.connect() {
			time.Sleep(long)
			p.mu.Lock()
			p.idle++
			p.mu.Unlock()
			p.gate.leave()
			return nil
		}
		if err := p.gate.refuse(errRefused); err != nil {
			return err
		}
	}
}

// connect takes an idle connection, or opens one if the server allows it.
func (p *pool) connect() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle > 0 {
		p.idle--
		return true
	}
	p.logins++
	p.crowd = p.crowd || p.open+p.logins > p.allowed
	p.mu.Unlock()
	time.Sleep(time.Second)
	p.mu.Lock()
	allows := !p.crowd
	if p.logins--; p.logins == 0 {
		p.crowd = false
	}
	if allows {
		p.open++
	} else {
		p.refused++
	}
	return allows
}

// TestRefusedLogins: however many logins the server allows at once, all calls have a
// connection in the end, and none if it allows none.
func TestRefusedLogins(t *testing.T) {
	for allowed := range 5 {
		synctest.Test(t, func(t *testing.T) {
			p := newPool(8, allowed)
			var group sync.WaitGroup
			for range 20 {
				group.Go(func() {
					err := p.call(t.Context(), 10*time.Millisecond)
					if want := allowed > 0; (err == nil) != want || !want && !errors.Is(err, errRefused) {
						t.Errorf("%d connections allowed: %v", allowed, err)
					}
				})
			}
			began := time.Now()
			group.Wait()
			if took := time.Since(began); took > 10*time.Second || p.refused > 100 {
				t.Errorf("%d connections allowed: %v, %d refusals", allowed, took, p.refused)
			}
			if p.gate.inside != 0 || len(p.gate.waiting) != 0 || p.gate.exclusive {
				t.Errorf("%d connections allowed: the gate is left with %+v", allowed, &p.gate)
			}
		})
	}
}

// TestWaitEndsWhenARefusalIsOld: the only connection is in use for long, and no other call
// comes or leaves. The server allows another connection again.
func TestWaitEndsWhenARefusalIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(8, 1)
		var group sync.WaitGroup
		group.Go(func() { _ = p.call(t.Context(), time.Hour) })
		time.Sleep(1500 * time.Millisecond)
		group.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if err := p.call(ctx, 0); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(1100 * time.Millisecond) // the login is refused
		p.mu.Lock()
		p.allowed = 8
		p.mu.Unlock()
		group.Wait()
		if p.refused != 1 {
			t.Errorf("%d refusals", p.refused)
		}
	})
}

// TestWaitThatEndsAtTheGate: the context of a call ends at the moment at which the call may
// enter. Another call enters in its place.
func TestWaitThatEndsAtTheGate(t *testing.T) {
	gate := &newPool(1, 1).gate
	if err := gate.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, second := &entrant{ready: make(chan error, 1)}, &entrant{ready: make(chan error, 1)}
	gate.waiting = []*entrant{first, second}
	gate.leave()
	if err := gate.giveUp(first, context.Canceled); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if len(second.ready) != 1 || <-second.ready != nil || gate.inside != 1 {
		t.Errorf("the second call is not in: %+v", gate)
	}
}

// TestClosedGate: calls that wait fail at once, later ones too, and a call that is refused
// after that does not try again.
func TestClosedGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(1, 0)
		var group sync.WaitGroup
		for i, want := range []error{errRefused, errClosed, errClosed} {
			group.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				if i == 2 {
					p.gate.close()
				}
				if err := p.call(t.Context(), 0); !errors.Is(err, want) {
					t.Errorf("call %d: %v, want %v", i, err, want)
				}
			})
		}
		group.Wait()
	})
}
