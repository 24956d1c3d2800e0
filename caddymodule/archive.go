package caddymodule

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/archive"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// archiver archives the history of a store once a day, if no other proxy has done so. It asks the database whether
// that is due, so a restart neither repeats nor omits a run.
type archiver struct {
	store    *edge.Database
	schedule archive.Schedule
	state    atomic.Pointer[admin.Archive] // what the database said last

	once   sync.Once
	cancel context.CancelFunc
	ctx    context.Context // ends with Close
	done   sync.WaitGroup
}

// archiveEvery is how often an archiver asks whether a run is due.
const archiveEvery = 10 * time.Minute

func newArchiver(s *edge.Database, settings edge.ArchiveSettings) *archiver {
	a := &archiver{store: s}
	a.schedule = archive.Schedule{
		Node: s.Settings.NodeNameOf(proxy.Kind), To: settings.To, Before: settings.Before, Expire: settings.Expire, Drop: settings.Drop,
		Warn: func(err error) { a.log().Warn("archiving the history", zap.Error(err)) },
	}
	a.state.Store(new(admin.Archive))
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

func (a *archiver) log() *zap.Logger {
	return caddy.Log().Named(logName).With(zap.String("target", a.schedule.To))
}

// Prepare begins, in the background.
func (a *archiver) Prepare() {
	a.once.Do(func() { a.done.Go(a.run) })
}

// Close ends a run that is under way. The next one goes on where it was.
func (a *archiver) Close() {
	a.cancel()
	a.done.Wait()
}

func (a *archiver) run() {
	said, at := "", time.Time{}
	for {
		err := a.check()
		switch {
		case a.ctx.Err() != nil:
			return
		case err == nil:
			said = ""
		case err.Error() != said || time.Since(at) > time.Hour: // a failure before a run is there at each check
			said, at = err.Error(), time.Now()
			a.log().Error("archiving the history", zap.Error(err))
		}
		select {
		case <-a.ctx.Done():
			return
		case <-time.After(archiveEvery):
		}
	}
}

// check archives if that is due.
func (a *archiver) check() error {
	if a.store.Settings.AutoMigrate {
		if err := history.Migrate(a.ctx, a.store.DB); err != nil {
			return err
		}
	}
	db, err := admin.Open(a.ctx, a.store.Settings.DSN) // a run needs a session of its own
	if err != nil {
		return err
	}
	defer db.Close()
	begin := time.Now()
	ran, failure := archive.Daily(a.ctx, db.Conn(), a.schedule)
	all, err := db.Archives(a.ctx)
	for i := range all {
		if all[i].Target == a.schedule.To {
			a.state.Store(&all[i])
		}
	}
	if ran && failure == nil {
		a.log().Info("archived the history", zap.Int64("files", a.state.Load().Files), zap.Duration("took", time.Since(begin)))
	}
	return errors.Join(failure, err)
}
