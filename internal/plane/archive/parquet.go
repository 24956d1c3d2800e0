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
	parquet *parquet.GenericWriter[any]
	batch   []parquet.Row // of which the first waiting rows are not written yet
	waiting int
	hasher  *hasher
	day     time.Time
	footer  Footer
}

func newFileWriter(to io.Writer, p partition, columns []column) *fileWriter {
	schema := schemaOf("rate_limit_audit", columns)
	w := parquet.NewGenericWriter[any](to, schema,
		parquet.Compression(&parquet.Zstd),
		parquet.MaxRowsPerRowGroup(groupRows),
		parquet.PageBufferSize(pageBytes),
		parquet.DictionaryMaxBytes(dictionaryBytes),
		parquet.DataPageStatistics(true),
		parquet.SortingWriterConfig(parquet.SortingColumns(parquet.Ascending("time"))),
		parquet.CreatedBy("pg_ratelimit", "", ""),
	)
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return &fileWriter{parquet: w, batch: make([]parquet.Row, batchRows), hasher: newHasher(names), day: p.day, footer: Footer{Day: dayName(p.day), Partition: p.name}}
}

// add writes a row. A row of another day is an error.
func (w *fileWriter) add(r parquet.Row) error {
	if t := time.UnixMicro(w.hasher.rowTime(r)).UTC(); t.Before(w.day) || !t.Before(w.day.Add(dayLength)) {
		return &problem{fmt.Sprintf("the table has a row of %s: must be of %s only", t.Format(time.RFC3339), dayName(w.day))}
	}
	row := &w.batch[w.waiting]
	*row = append((*row)[:0], r...)
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
	w.footer.Fingerprint = f
	footer, err := json.Marshal(w.footer)
	if err != nil {
		return f, err
	}
	w.parquet.SetKeyValueMetadata(footerKey, string(footer))
	return f, errors.Join(w.flush(), w.parquet.Close())
}

// readableFile is a file that can be read.
type readableFile interface {
	io.ReaderAt
	Size() int64
}

// readFooter reads only the end of a file.
func readFooter(s readableFile) (Footer, error) {
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

func openFile(s readableFile) (*parquet.File, error) {
	return parquet.OpenFile(s, s.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true), parquet.ReadBufferSize(pageBytes))
}

// namesOf are the names of the columns of a file.
func namesOf(f *parquet.File) []string {
	var names []string
	for _, path := range f.Schema().Columns() {
		names = append(names, path[0])
	}
	return names
}

// readRows calls read for each row of a file, in their order. The row is valid until read returns.
func readRows(f *parquet.File, read func(parquet.Row) error) error {
	reader := parquet.NewGenericReader[any](f, f.Schema())
	defer reader.Close()
	_, err := parquet.CopyRows(parquet.RowWriterFunc(func(rows []parquet.Row) (int, error) {
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
func fingerprintOf(s readableFile) (Fingerprint, error) {
	f, err := openFile(s)
	if err != nil {
		return Fingerprint{}, err
	}
	h := newHasher(namesOf(f))
	err = readRows(f, func(row parquet.Row) error {
		h.add(row)
		return nil
	})
	return h.fingerprint(), err
}

// check reads a file and compares its rows, and what it says about itself, with those that it
// should have.
func check(s readableFile, want Fingerprint) error {
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
