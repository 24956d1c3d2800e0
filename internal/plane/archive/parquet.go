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
	hasher  *hasher
	day     time.Time
	table   string
}

func newFileWriter(to io.Writer, day time.Time, table string) *fileWriter {
	w := parquet.NewGenericWriter[any](to, schema(),
		parquet.Compression(&parquet.Zstd),
		parquet.MaxRowsPerRowGroup(groupRows),
		parquet.PageBufferSize(pageBytes),
		parquet.DictionaryMaxBytes(dictionaryBytes),
		parquet.DataPageStatistics(true),
		parquet.SortingWriterConfig(parquet.SortingColumns(parquet.Ascending("time"))),
		parquet.CreatedBy("pg_ratelimit", "", ""),
	)
	return &fileWriter{w, newHasher(), day, table}
}

// write writes rows. A row of another day is an error.
func (w *fileWriter) write(rows []parquet.Row) error {
	begin, end := w.day.UnixMicro(), w.day.Add(dayLength).UnixMicro()
	for _, row := range rows {
		if t := rowTime(row); t < begin || t >= end {
			return &problem{fmt.Sprintf("the table has a row of %s: must be of %s only", fromMicroseconds(t).Format(time.RFC3339), dayName(w.day))}
		}
		w.hasher.add(row)
	}
	_, err := w.parquet.WriteRows(rows)
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
	return f, w.parquet.Close()
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

// fileReader reads the rows of a file in their order.
type fileReader struct {
	reader *parquet.GenericReader[any]
	buffer []parquet.Row
	rows   []parquet.Row // of buffer, not returned yet
	ended  bool
}

func openRows(s source) (*fileReader, error) {
	f, err := parquet.OpenFile(s, s.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true), parquet.ReadBufferSize(pageBytes))
	if err != nil {
		return nil, err
	}
	if !parquet.EqualNodes(f.Schema(), schema()) {
		return nil, errors.New("it has other columns than this version writes")
	}
	return &fileReader{reader: parquet.NewGenericReader[any](f), buffer: make([]parquet.Row, batchRows)}, nil
}

// next returns the next row, and io.EOF at the end. The row is valid until the next call.
func (r *fileReader) next() (parquet.Row, error) {
	for len(r.rows) == 0 {
		if r.ended {
			return nil, io.EOF
		}
		n, err := r.reader.ReadRows(r.buffer)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		r.rows, r.ended = r.buffer[:n], err != nil
	}
	row := r.rows[0]
	r.rows = r.rows[1:]
	return row, nil
}

func (r *fileReader) close() { _ = r.reader.Close() } // it was only read

// fingerprintOf reads all rows of a file.
func fingerprintOf(s source) (Fingerprint, error) {
	r, err := openRows(s)
	if err != nil {
		return Fingerprint{}, err
	}
	defer r.close()
	h := newHasher()
	for {
		row, err := r.next()
		if errors.Is(err, io.EOF) {
			return h.fingerprint(), nil
		}
		if err != nil {
			return Fingerprint{}, err
		}
		h.add(row)
	}
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
