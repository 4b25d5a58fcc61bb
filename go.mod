module github.com/penstock-project/penstock

go 1.26
