package archive

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/parquet-go/parquet-go"
)

// The memory that a file takes is that of one group of rows.
const (
	groupRows       = 50_000
	pageBytes       = 256 << 10
	batchRows       = 256     // that are written at once
	dictionaryBytes = 1 << 20 // a column with more different values is not stored as a dictionary
)

// footerKey is the key of the Footer in the metadata of a file.
const footerKey = "pg_ratelimit"

// Footer is what a file says about itself, as JSON in its metadata.
type Footer struct {
	Day       string `json:"day"`       // such as 2026-08-01, in UTC
	Partition string `json:"partition"` // the name of the table
	Fingerprint
}

// fileWriter writes a file.
type fileWriter struct {
	parquet *parquet.GenericWriter[auditRow]
	batch   []parquet.Row // of which the first waiting rows are not written yet
	waiting int
	hasher  *hasher
	day     time.Time
	table   string
}

func newFileWriter(to io.Writer, day time.Time, table string) *fileWriter {
	w := parquet.NewGenericWriter[auditRow](to, schema,
		parquet.Compression(&parquet.Zstd),
		parquet.MaxRowsPerRowGroup(groupRows),
		parquet.PageBufferSize(pageBytes),
		parquet.DictionaryMaxBytes(dictionaryBytes),
		parquet.DataPageStatistics(true),
		parquet.SortingWriterConfig(parquet.SortingColumns(parquet.Ascending("time"))),
		parquet.CreatedBy("pg_ratelimit", "", ""),
	)
	return &fileWriter{parquet: w, batch: make([]parquet.Row, batchRows), hasher: newHasher(), day: day, table: table}
}

// add writes a row. A row of another day is an error.
func (w *fileWriter) add(r *auditRow) error {
	if r.Time.Before(w.day) || !r.Time.Before(w.day.Add(dayLength)) {
		return &problem{fmt.Sprintf("the table has a row of %s: must be of %s only", r.Time.UTC().Format(time.RFC3339), dayName(w.day))}
	}
	row := &w.batch[w.waiting]
	*row = r.appendTo((*row)[:0])
	w.hasher.add(*row)
	if w.waiting++; w.waiting == batchRows {
		return w.flush()
	}
	return nil
}

func (w *fileWriter) flush() error {
	_, err := w.parquet.WriteRows(w.batch[:w.waiting])
	w.waiting = 0
	return err
}

// close completes the file.
func (w *fileWriter) close() (Fingerprint, error) {
	f := w.hasher.fingerprint()
	footer, err := json.Marshal(Footer{dayName(w.day), w.table, f})
	if err != nil {
		return f, err
	}
	w.parquet.SetKeyValueMetadata(footerKey, string(footer))
	return f, errors.Join(w.flush(), w.parquet.Close())
}

// source is a file that can be read.
type source interface {
	io.ReaderAt
	Size() int64
}

// readFooter reads only the end of a file.
func readFooter(s source) (Footer, error) {
	var footer Footer
	f, err := parquet.OpenFile(s, s.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return footer, err
	}
	value, ok := f.Lookup(footerKey)
	if !ok {
		return footer, errors.New("it has no " + footerKey + " in its metadata, so pg-ratelimit did not write it")
	}
	return footer, json.Unmarshal([]byte(value), &footer)
}

// readFile calls read for each row of a file, in their order. The row is valid until read returns.
func readFile(s source, read func(parquet.Row) error) error {
	f, err := parquet.OpenFile(s, s.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true), parquet.ReadBufferSize(pageBytes))
	if err != nil {
		return err
	}
	if !parquet.EqualNodes(f.Schema(), schema) {
		return errors.New("it has other columns than this version writes")
	}
	reader := parquet.NewGenericReader[auditRow](f)
	defer reader.Close() //nolint:errcheck // it was only read
	_, err = parquet.CopyRows(parquet.RowWriterFunc(func(rows []parquet.Row) (int, error) {
		for _, row := range rows {
			if err := read(row); err != nil {
				return 0, err
			}
		}
		return len(rows), nil
	}), reader)
	return err
}

// fingerprintOf reads all rows of a file.
func fingerprintOf(s source) (Fingerprint, error) {
	h := newHasher()
	err := readFile(s, func(row parquet.Row) error {
		h.add(row)
		return nil
	})
	return h.fingerprint(), err
}

// check reads a file and compares its rows, and what it says about itself, with those that it
// should have.
func check(s source, want Fingerprint) error {
	got, err := fingerprintOf(s)
	if err != nil {
		return err
	}
	if !got.Equal(want) {
		return errors.New(got.difference(want))
	}
	footer, err := readFooter(s)
	if err != nil {
		return err
	}
	if !footer.Equal(want) {
		return errors.New("its metadata do not agree with its rows")
	}
	return nil
}
