// Package archive copies days of the audit log to Parquet files, and drops the days that it has copied. Run does
// all of it.
//
// A day in UTC becomes one file, such as audit/2026/08/2026-08-01.parquet.
//
// The columns are those of the table, with the same names and in the same order. The catalogue of the database
// says which they are. A file of an older version, with fewer columns, is replaced.
//
// The audit log has a partition for each day, and its rows are only ever added.
// A day can have more than one partition: rows that come after the partition of their day was
// detached get a new one. Each becomes a file with a number, audit/2026/08/2026-08-01-2.parquet. Rows are
// sorted by time.
//
// A partition goes through these steps, and the program may end at any of them:
//
//  1. With Drop: detach the partition, so that it gets no more rows.
//  2. Read it in one transaction, sorted, and write it to a temporary file. A Fingerprint is
//     computed from the rows of the database meanwhile, and is the last thing in the file.
//  3. Read the file back and put it in its place. Its rows must have the same Fingerprint. A file in
//     a folder gets its name after it was read back, an object of S3 is read back after the upload.
//  4. With Drop: drop the table, if it still has as many rows as the file.
//
// The next run finds what is left by one that ended: detached tables, temporary files, unfinished
// uploads, and files whose table still exists. It compares the rows of such a file with those of
// the table and then goes on. A table is dropped only after a file was read back in the same run.
//
// The parts of the package:
//
//   - archive.go: a run; day.go: one partition
//   - partitions.go: finding, detaching and dropping partitions
//   - columns.go, rows.go: the columns, and reading them from Postgres
//   - fingerprint.go: the checksums
//   - parquet.go: writing and reading a file; overlap.go: comparing the rows of two files
//   - destination.go, directory.go, temporary.go: where files are; s3.go, s3_credentials.go: on S3, which the build
//     tag nos3 leaves out (s3_left_out.go)
package archive
