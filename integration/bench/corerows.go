package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// coreRow is a line of the table of the core alone: decisions that programs
// make without a proxy.
type coreRow struct {
	name      string
	load      coreLoad
	processes int
	samples   []coreSample
}

// ratio is the row's to coreBare, if both ask about the same rows.
func (row *coreRow) ratio(r *results) spread {
	if row.load.Keys != coreKeys {
		return spreadOf(nil)
	}
	return ratioOf(coreRates(row.samples), r.rates(coreBare))
}

// coreSample is what one round has measured of it.
type coreSample struct {
	rate      float64 // decisions a second
	clientCPU float64 // microseconds a decision
	storeCPU  float64 // of Postgres
	batch     float64 // decisions a statement
}

// Names of rows that others refer to.
const (
	coreBare   = "Core: bare upsert, batches of 100 on 2 connections"
	coreDirect = "Core: batches of 100 on 2 connections"
	coreGroup  = "Core: group commit, 256 callers"
	coreHot    = "Core: one hot key, 4 processes"
)

// coreKeys is how many keys the rows have, where they have more than one.
const coreKeys = 10000

func allCoreRows() []*coreRow {
	return []*coreRow{
		{name: coreBare, processes: 1, load: coreLoad{Bare: true, Stores: 2, Callers: 1, Batch: 100, Keys: coreKeys}},
		{name: coreDirect, processes: 1, load: coreLoad{Stores: 2, Callers: 1, Batch: 100, Keys: coreKeys}},
		{name: "Core: group commit, 64 callers", processes: 1, load: coreLoad{Stores: 1, Callers: 64, Batch: 1, Keys: coreKeys}},
		{name: coreGroup, processes: 1, load: coreLoad{Stores: 1, Callers: 256, Batch: 1, Keys: coreKeys}},
		{name: "Core: one statement a decision, 8 connections", processes: 1, load: coreLoad{Stores: 8, Callers: 1, Batch: 1, Keys: coreKeys}},
		{name: coreHot, processes: 4, load: coreLoad{Stores: 1, Callers: 64, Batch: 1, Keys: 1}},
	}
}

// bareTable is a table of the same shape as the core's, for coreBare.
const bareTable = "CREATE UNLOGGED TABLE bare (LIKE rate_limit_ephemeral INCLUDING ALL) WITH (fillfactor = 70)"

// measureCore measures the core's rows, in turn, after the proxies have gone.
func (b *bench) measureCore(ctx context.Context, r *results) error {
	r.core = b.core
	for _, row := range b.core {
		dsn, err := b.postgres.create(ctx)
		if err != nil {
			return err
		}
		if err := execAt(ctx, dsn, ratelimit.TableSQL+bareTable); err != nil {
			return err
		}
		row.load.DSN = dsn
	}
	for round := 1; round <= b.rounds; round++ {
		for _, row := range b.core {
			s, err := b.measureCoreRow(ctx, row, round)
			if err != nil {
				return fmt.Errorf("%s: %w", row.name, err)
			}
			row.samples = append(row.samples, s)
			b.progress("round %d of %d: %s: %s decisions/s", round, b.rounds, row.name, thousands(s.rate))
		}
	}
	return nil
}

// measureCoreRow measures a row once: its processes warm up, wait for one
// another, and then count for the same seconds.
func (b *bench) measureCoreRow(ctx context.Context, row *coreRow, round int) (_ coreSample, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(b.seconds)*time.Second)
	defer cancel()
	var processes []*coreProcess
	defer func() {
		for _, p := range processes {
			err = errors.Join(err, p.end())
		}
	}()
	for i := range row.processes {
		load := row.load
		load.Seconds, load.Seed = float64(b.seconds), uint64(100*round+i)
		p, err := b.startCore(ctx, load)
		if err != nil {
			return coreSample{}, err
		}
		processes = append(processes, p)
	}
	for _, p := range processes {
		if err := p.await("ready"); err != nil {
			return coreSample{}, err
		}
	}
	cpu, err := b.postgres.cpu()
	if err != nil {
		return coreSample{}, err
	}
	for _, p := range processes {
		if _, err := io.WriteString(p.in, "go\n"); err != nil {
			return coreSample{}, err
		}
	}
	var s coreSample
	var decisions, statements, client float64
	for _, p := range processes {
		var o coreOutcome
		if err := p.read(&o); err != nil {
			return coreSample{}, err
		}
		decisions += float64(o.Decisions)
		statements += float64(o.Statements)
		client += o.CPU
		s.rate += float64(o.Decisions) / o.Seconds
	}
	after, err := b.postgres.cpu()
	if err != nil {
		return coreSample{}, err
	}
	s.clientCPU, s.storeCPU = client/decisions, microseconds(after-cpu)/decisions
	s.batch = decisions / statements
	return s, nil
}

// coreProcess is a process of a row.
type coreProcess struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr strings.Builder
}

func (b *bench) startCore(ctx context.Context, load coreLoad) (*coreProcess, error) {
	text, err := json.Marshal(load)
	if err != nil {
		return nil, err
	}
	p := &coreProcess{cmd: exec.CommandContext(ctx, b.self, coreChild, string(text))}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = &p.stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

// await reads a line, which must be want.
func (p *coreProcess) await(want string) error {
	line, err := p.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != want {
		return fmt.Errorf("a process of the core said %s instead of %s: %s", strconv.Quote(line), want, p.stderr.String())
	}
	return nil
}

// read reads the outcome.
func (p *coreProcess) read(o *coreOutcome) error {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("a process of the core said nothing: %s", p.stderr.String())
	}
	return json.Unmarshal(line, o)
}

// end lets the process go. One that is still at work ends as its input does.
func (p *coreProcess) end() error {
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("a process of the core: %w: %s", err, strings.TrimSpace(p.stderr.String()))
	}
	return nil
}
