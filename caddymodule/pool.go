package caddymodule

import (
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

// inUse are the open stores, and the policies and histories on them, by their resolved settings: a
// edge.StoreSettings, policyUse, historyUse or archiveUse. All handlers with the same settings share one. A handler of
// the next config shares it too, so that a reload loses no connection and no record. The pool counts the
// configs that use it, and closes it when the last one has released it.
var inUse = caddy.NewUsagePool()

// resource is what handlers share: a *store, an *edge.ProxyPolicy, a *history.Writer or an *archiver. Both methods may be
// called again.
type resource interface {
	Prepare() // connects, in the background
	Close()
}

// shared is a resource in the pool.
type shared struct{ resource }

// Destruct implements caddy.Destructor.
func (s shared) Destruct() error {
	s.Close()
	return nil
}

// use is a resource that a config uses.
type use struct {
	settings any
	resource
}

// share returns the resource with these settings, and opens it if there is none. If the config has not
// used the resource yet, share adds it to the metrics of the config.
func share[T resource](a *App, settings any, open func() (T, error)) (T, error) {
	for _, u := range a.used {
		if u.settings == settings {
			return u.resource.(T), nil
		}
	}
	loaded, _, err := inUse.LoadOrNew(settings, func() (caddy.Destructor, error) {
		opened, err := open()
		return shared{opened}, err
	})
	if err != nil {
		var none T
		return none, err
	}
	value := loaded.(shared).resource.(T)
	a.used = append(a.used, use{settings, value})
	if a.metrics != nil {
		a.metrics.watch(value)
	}
	return value, nil
}

// release releases all that a config uses, after a time. A history and a policy use the driver of their
// store, so they are released first.
func (a *App) release(after time.Duration) {
	used := a.used
	a.used = nil
	if len(used) == 0 {
		return
	}
	time.AfterFunc(after, func() {
		for _, u := range slices.Backward(used) {
			if _, err := inUse.Delete(u.settings); err != nil {
				caddy.Log().Named(logName).Error("closing a database", zap.Error(err))
			}
		}
	})
}

// closeAll closes all resources of a kind, because the process ends.
func closeAll[T resource]() {
	var wg sync.WaitGroup
	inUse.Range(func(_, value any) bool {
		if r, ok := value.(shared).resource.(T); ok {
			wg.Go(r.Close)
		}
		return true
	})
	wg.Wait()
}
