package archive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// work is what Run does for one partition.
type work struct {
	conn      *pgx.Conn
	options   Options
	partition partition
	// blocked is why no partition can be detached, if one before it could not.
	blocked *problem
	day     Day // what was done
}

// run archives the partition. It returns an error if Run cannot go on with others.
func (w *work) run(ctx context.Context) (Day, error) {
	begin := time.Now()
	err := w.do(ctx)
	w.day.Seconds = time.Since(begin).Seconds()
	if err != nil {
		w.day.Problem = err.Error()
	}
	// What the server refuses is about this partition, such as a view that needs the table.
	var known *problem
	var refused *pgconn.PgError
	if (errors.As(err, &known) || errors.As(err, &refused) && !w.conn.IsClosed()) && ctx.Err() == nil {
		err = nil
	}
	return w.day, err
}

// do archives the partition, and drops it if the options say so. A *problem is only about this
// partition.
func (w *work) do(ctx context.Context) error {
	p := w.partition
	drop := w.options.Drop
	switch {
	case p.attached && w.blocked != nil && (drop || p.pending):
		return w.blocked
	case p.pending:
		// Writers that began before may still write to it.
		if err := finalize(ctx, w.conn); err != nil {
			errors.As(err, &w.blocked)
			return err
		}
	case p.attached && drop:
		if err := detach(ctx, w.conn, p); err != nil {
			errors.As(err, &w.blocked)
			return err
		}
	}
	if !drop {
		if done, err := w.unchanged(ctx); done || err != nil {
			return err
		}
	}
	if err := w.archive(ctx); err != nil {
		return err
	}
	if !drop {
		return nil
	}
	if err := dropTable(ctx, w.conn, p, w.day.Rows); err != nil {
		return err // the next run finds the file
	}
	w.day.Dropped = true
	return nil
}

// unchanged reports whether there is nothing to do without Drop: the partition is empty, or has as
// many rows as one of its day's files, from the same first to the same last.
func (w *work) unchanged(ctx context.Context) (bool, error) {
	var f Footer
	p := w.partition
	err := reading(ctx, w.conn, p, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT count(*), coalesce((extract(epoch FROM min(time)) * 1000000)::bigint, 0),
			coalesce((extract(epoch FROM max(time)) * 1000000)::bigint, 0) FROM ONLY `+p.table).Scan(&f.Rows, &f.First, &f.Last)
	})
	if err != nil {
		return false, err
	}
	if f.Rows == 0 {
		w.day.Result = Empty
		return true, nil
	}
	files, err := w.files(ctx)
	if err != nil {
		return false, err
	}
	for _, file := range files.there {
		if file.Rows == f.Rows && file.First == f.First && file.Last == f.Last {
			w.found(Unchanged, file.name, f.Rows, file.size)
			return true, nil
		}
	}
	return false, nil
}

// archive makes sure that there is a file with the rows of the partition, and that it was read.
func (w *work) archive(ctx context.Context) error {
	files, err := w.files(ctx)
	if err != nil {
		return err
	}
	name := fileOf(w.partition.day, files.free)
	temporary, err := w.options.To.temporary(name)
	if err != nil {
		return err
	}
	defer closeTemporary(temporary) //nolint:errcheck // it is in its place, or of no use
	written, err := w.write(ctx, temporary)
	if err != nil {
		return err
	}
	if written.Rows == 0 {
		w.day.Result = Empty
		return nil
	}
	for _, file := range files.there {
		if !file.Equal(written) {
			continue
		}
		if err := w.verify(ctx, file.name, written); err != nil {
			return err
		}
		w.found(Unchanged, file.name, written.Rows, file.size)
		return nil
	}
	result := Archived
	local, err := fileSource(temporary)
	if err != nil {
		return err
	}
	older, err := w.contained(ctx, local, files)
	if err != nil {
		return err
	}
	if older != "" {
		name, result = older, Replaced
	}
	if err := w.options.To.publish(ctx, temporary, name, func(s readableFile) error { return check(s, written) }); err != nil {
		return err
	}
	w.found(result, name, written.Rows, local.size)
	return nil
}

func (w *work) found(result Result, name string, rows, bytes int64) {
	w.day.Result, w.day.File, w.day.Rows, w.day.Bytes = result, name, rows, bytes
}

// write writes the rows of the partition to a file.
func (w *work) write(ctx context.Context, to *os.File) (Fingerprint, error) {
	var writer *fileWriter
	err := reading(ctx, w.conn, w.partition, func(tx pgx.Tx) error {
		columns, err := columnsOf(ctx, tx, w.partition.table)
		if err != nil {
			return err
		}
		writer = newFileWriter(to, w.partition, columns)
		return readTable(ctx, w.conn, w.partition, columns, writer.add)
	})
	if err != nil {
		return Fingerprint{}, err
	}
	return writer.close()
}

// dayFiles are the files of a day.
type dayFiles struct {
	there []dayFile
	free  int // the first free number
}

type dayFile struct {
	name string
	size int64
	Footer
}

// files reads what the files of the day say about themselves.
func (w *work) files(ctx context.Context) (dayFiles, error) {
	names, free, err := filesOf(ctx, w.options.To, w.partition.day)
	if err != nil {
		return dayFiles{}, err
	}
	files := dayFiles{free: free}
	for _, name := range names {
		err := w.with(ctx, name, false, func(s sourceCloser) error {
			footer, err := readFooter(s)
			files.there = append(files.there, dayFile{name, s.Size(), footer})
			return err
		})
		if err != nil {
			return files, err
		}
	}
	return files, nil
}

// with opens a file of the destination for a function. An error of the function is a problem with
// the file.
func (w *work) with(ctx context.Context, name string, whole bool, do func(sourceCloser) error) error {
	s, err := w.options.To.open(ctx, name, whole)
	if err != nil {
		return fmt.Errorf("opening %s: %w", name, err)
	}
	defer s.Close()
	if err := do(s); err != nil {
		return errors.Join(ctx.Err(), &problem{fmt.Sprintf("%s cannot be used: %v. Move it away, and the next run writes the day anew", name, err)})
	}
	return nil
}

// verify reads a file that an earlier run wrote.
func (w *work) verify(ctx context.Context, name string, want Fingerprint) error {
	return w.with(ctx, name, true, func(s sourceCloser) error { return check(s, want) })
}

// contained returns the file whose rows are all among those of the new file, so that the new one
// can replace it; "" if no file of the day has a row of the new one. Rows are only ever added to
// a partition: a file with fewer was written before the last of them came.
func (w *work) contained(ctx context.Context, written readableFile, files dayFiles) (string, error) {
	older := ""
	for _, file := range files.there {
		var common int64
		err := w.with(ctx, file.name, true, func(s sourceCloser) error {
			var err error
			common, err = overlap(s, written)
			return err
		})
		switch {
		case err != nil:
			return "", err
		case common == 0:
		case common < file.Rows:
			return "", &problem{fmt.Sprintf("%s has %d rows, of which the table has only %d: rows were changed or deleted since it was written. Move the file away, and the next run writes the day anew",
				file.name, file.Rows, common)}
		case older != "":
			return "", &problem{fmt.Sprintf("the table has the rows of both %s and %s: move them away, and the next run writes the day anew", older, file.name)}
		default:
			older = file.name
		}
	}
	return older, nil
}
