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

// policyUse tells policies apart.
type policyUse struct {
	store    edge.StoreSettings
	settings edge.PolicySettings
}

// livePolicy is a policy that handlers share.
type livePolicy struct{ *edge.Policy }

func (p *livePolicy) prepare() { p.Prepare() }

// Destruct implements caddy.Destructor.
func (p *livePolicy) Destruct() error {
	p.Close()
	return nil
}

// policy returns the policy in the database of a store.
func (a *App) policy(ctx caddy.Context, s *store, settings edge.PolicySettings) (*edge.Policy, error) {
	value, first, err := a.share(policyUse{s.settings, settings}, func() (caddy.Destructor, error) {
		kept := &keptRules{storage: ctx.Storage(), key: keptRulesKey(s.settings.DSN)}
		opened, err := edge.OpenPolicy(s.Store, s.db, settings, edge.PolicyOptions{
			Node: s.settings.NodeNameOf(proxyKind), AutoMigrate: s.settings.AutoMigrate,
			Saved: kept.load(), Save: kept.save, OnError: s.logPolicyFailure,
		})
		if err != nil {
			return nil, err
		}
		return &livePolicy{opened}, nil
	})
	if err != nil {
		return nil, err
	}
	p := value.(*livePolicy)
	if first {
		a.metrics.watchPolicy(p.Policy)
	}
	return p.Policy, nil
}

func version() string {
	simple, _ := caddy.Version()
	return "Caddy " + simple
}

// logPolicyFailure logs what the policy reports: that the database does not answer, or rules
// that cannot be used. It reports each failure once until it is over.
func (s *store) logPolicyFailure(err error) {
	if s.closed.Load() {
		return
	}
	s.noteFailure(err)
	caddy.Log().Named(logName).Error("the policy", zap.Error(err))
}

// keptRules keeps the last good rules in Caddy's storage, so that a Caddy that starts while
// the database is down has them. They contain no API key.
type keptRules struct {
	storage interface {
		Load(ctx context.Context, key string) ([]byte, error)
		Store(ctx context.Context, key string, value []byte) error
	}
	key string

	mu     sync.Mutex
	latest []byte // to be written; nil if there is none; guarded by mu
	saving bool   // a goroutine writes; guarded by mu
}

// keptRulesKey is the place of the rules of a database. The DSN may hold a password.
func keptRulesKey(dsn string) string {
	digest := sha256.Sum256([]byte(dsn))
	return "pg_ratelimit/rules-" + hex.EncodeToString(digest[:8]) + ".json"
}

// storageTimeout is for reading or writing the rules.
const storageTimeout = 5 * time.Second

// load returns the rules that were kept, or nil.
func (k *keptRules) load() []byte {
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	rules, err := k.storage.Load(ctx, k.key)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		caddy.Log().Named(logName).Warn("the kept rules of the policy cannot be read from Caddy's storage", zap.String("key", k.key), zap.Error(err))
	}
	return rules
}

// save keeps rules, in the background. Of rules that come while others are written, only the
// last are written.
func (k *keptRules) save(rules []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.latest = rules
	if !k.saving {
		k.saving = true
		go k.write()
	}
}

func (k *keptRules) write() {
	for {
		k.mu.Lock()
		rules := k.latest
		k.latest = nil
		k.saving = rules != nil
		k.mu.Unlock()
		if rules == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
		if err := k.storage.Store(ctx, k.key, rules); err != nil {
			caddy.Log().Named(logName).Warn("the rules of the policy cannot be kept in Caddy's storage", zap.String("key", k.key), zap.Error(err))
		}
		cancel()
	}
}
