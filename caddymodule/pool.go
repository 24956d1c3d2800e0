package caddymodule

import (
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

// inUse are the open stores, and the policies and histories on them, by their resolved settings: a
// edge.StoreSettings, policyUse or historyUse. All handlers with the same settings share one. A handler of
// the next config shares it too, so that a reload loses no connection and no record. The pool counts the
// configs that use it, and closes it when the last one has released it.
var inUse = caddy.NewUsagePool()

// use is something that the handlers of a config share.
type use struct {
	settings any
	value    shared
}

// shared is a store, a policy or a history.
type shared interface {
	caddy.Destructor
	prepare() // connects, in the background; it may be called again
}

// share returns what is shared with these settings, and opens it if there is none. first reports
// whether the config has not used it yet.
func (a *App) share(settings any, open caddy.Constructor) (value shared, first bool, err error) {
	for _, u := range a.used {
		if u.settings == settings {
			return u.value, false, nil
		}
	}
	loaded, _, err := inUse.LoadOrNew(settings, open)
	if err != nil {
		return nil, false, err
	}
	value = loaded.(shared)
	a.used = append(a.used, use{settings, value})
	return value, true, nil
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
