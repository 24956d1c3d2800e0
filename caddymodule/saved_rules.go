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
)

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

// savedIn returns an edge.Places's Saved in the storage of a config.
func savedIn(ctx caddy.Context) func(dsn string) ([]byte, func([]byte)) {
	return func(dsn string) ([]byte, func([]byte)) {
		saved := &savedRules{storage: ctx.Storage(), key: savedRulesKey(dsn)}
		return saved.load(), saved.save
	}
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
