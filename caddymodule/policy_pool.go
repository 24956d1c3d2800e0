package caddymodule

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// policyUse identifies a policy.
type policyUse struct {
	counters edge.StoreSettings
	store    edge.StoreSettings
	settings edge.PolicySettings
}

// policy returns the policy in the database of a store, for limits that are counted in a store.
func (a *App) policy(ctx caddy.Context, counters, s *store, settings edge.PolicySettings) (*edge.ProxyPolicy, error) {
	return share(a, policyUse{counters.settings, s.settings, settings}, func() (*edge.ProxyPolicy, error) {
		saved := &savedRules{storage: ctx.Storage(), key: savedRulesKey(s.settings.DSN)}
		return edge.OpenProxyPolicy(counters.Store, s.Store, s.db, settings, edge.ProxyPolicyOptions{
			Node: s.settings.NodeNameOf(proxyKind), AutoMigrate: s.settings.AutoMigrate,
			Saved: saved.load(), Save: saved.save, OnError: func(err error) { s.logPolicyFailure(counters, err) },
		})
	})
}

// logPolicyFailure logs what the policy reports: that the database does not answer, or rules
// that cannot be used. It reports each failure once until it is over.
func (s *store) logPolicyFailure(counters *store, err error) {
	if s.closed.Load() {
		return
	}
	if counters == s { // else no decision would say that the database answers again
		s.outage.Failed(err, false, time.Now())
		s.shown.Store(int32(zap.ErrorLevel))
	}
	caddy.Log().Named(logName).Error("the policy", zap.Error(err))
}

// savedRules saves the last good rules in Caddy's storage, so that a Caddy that starts while
// the database is down has them. They contain no API key.
type savedRules struct {
	storage interface {
		Load(ctx context.Context, key string) ([]byte, error)
		Store(ctx context.Context, key string, value []byte) error
	}
	key string

	mu     sync.Mutex
	latest []byte // to be written; nil if there is none; guarded by mu
	saving bool   // a goroutine writes; guarded by mu
}

// savedRulesKey is the name of the rules of a database in the storage. The DSN may hold a password.
func savedRulesKey(dsn string) string {
	digest := sha256.Sum256([]byte(dsn))
	return "pg_ratelimit/rules-" + hex.EncodeToString(digest[:8]) + ".json"
}

// storageTimeout is for reading or writing the rules.
const storageTimeout = 5 * time.Second

// load returns the rules that were saved, or nil.
func (r *savedRules) load() []byte {
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	rules, err := r.storage.Load(ctx, r.key)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		caddy.Log().Named(logName).Warn("the saved rules of the policy cannot be read from Caddy's storage", zap.String("key", r.key), zap.Error(err))
	}
	return rules
}

// save saves rules, in the background. Of rules that come while others are written, only the
// last are written.
func (r *savedRules) save(rules []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest = rules
	if !r.saving {
		r.saving = true
		go r.write()
	}
}

func (r *savedRules) write() {
	for {
		r.mu.Lock()
		rules := r.latest
		r.latest = nil
		r.saving = rules != nil
		r.mu.Unlock()
		if rules == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
		if err := r.storage.Store(ctx, r.key, rules); err != nil {
			caddy.Log().Named(logName).Warn("the rules of the policy cannot be saved in Caddy's storage", zap.String("key", r.key), zap.Error(err))
		}
		cancel()
	}
}
