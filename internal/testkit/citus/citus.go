// Package citus runs a private Citus cluster: a coordinator and workers. build.sh builds Citus.
package citus

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// database is the name of the database on all servers.
const database = "limits"

// Servers are the servers of a Citus cluster.
type Servers struct {
	Coordinator *cluster.Cluster
	Workers     []*cluster.Cluster

	bin string
}

// Options configures a Citus cluster.
type Options struct {
	// BinDir is the folder of the programs, which build.sh prints.
	BinDir string
	// Workers is the number of workers.
	Workers int
}

// Start starts a coordinator and workers.
func Start(ctx context.Context, o Options) (_ *Servers, err error) {
	s := &Servers{bin: o.BinDir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.Coordinator, err = s.server(ctx); err != nil {
		return nil, err
	}
	if err := cluster.Run(ctx, s.DSN(), fmt.Sprintf("SELECT citus_set_coordinator_host('127.0.0.1', %d)",
		s.Coordinator.Port())); err != nil {
		return nil, err
	}
	for range o.Workers {
		if _, err := s.Add(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// server starts a server with the extension citus.
func (s *Servers) server(ctx context.Context) (*cluster.Cluster, error) {
	config := map[string]string{
		"shared_preload_libraries":           "citus",
		"wal_level":                          "logical",
		"max_prepared_transactions":          "100",
		"max_connections":                    "200",
		"citus.node_conninfo":                "sslmode=disable",
		"citus.enable_statistics_collection": "off",
		"citus.recover_2pc_interval":         "1s", // a killed server leaves transactions that hold locks
		"fsync":                              "off",
		"full_page_writes":                   "off",
		"shared_buffers":                     "64MB",
	}
	c, err := cluster.Start(ctx, cluster.Options{BinDir: s.bin, Config: config})
	if err != nil {
		return nil, err
	}
	if err := cluster.Run(ctx, c.DSN("postgres"), "CREATE DATABASE "+database); err != nil {
		return c, err
	}
	return c, cluster.Run(ctx, c.DSN(database), "CREATE EXTENSION citus")
}

// Add starts another worker, without shards, and returns its number.
func (s *Servers) Add(ctx context.Context) (int, error) {
	w, err := s.server(ctx)
	if w != nil {
		s.Workers = append(s.Workers, w)
	}
	if err != nil {
		return 0, err
	}
	return len(s.Workers) - 1,
		cluster.Run(ctx, s.DSN(), fmt.Sprintf("SELECT citus_add_node('127.0.0.1', %d)", w.Port()))
}

// DSN returns the DSN of the coordinator.
func (s *Servers) DSN() string { return s.Coordinator.DSN(database) }

// Move moves a schema to a worker. Meanwhile, writes to the schema's unlogged tables wait.
func (s *Servers) Move(ctx context.Context, schema string, worker int) error {
	return cluster.Run(ctx, s.DSN(),
		fmt.Sprintf("SELECT citus_schema_move('%s', '127.0.0.1', %d, 'block_writes')", schema,
			s.Workers[worker].Port()))
}

// Stop ends all servers.
func (s *Servers) Stop() error {
	var errs []error
	for _, c := range append(s.Workers, s.Coordinator) {
		if c != nil {
			errs = append(errs, c.Stop())
		}
	}
	return errors.Join(errs...)
}
